"""tensorway-encoder --backend package.module:Class [flags]."""

from __future__ import annotations

from encoder_service.options import EncoderRegisterOptions, EncoderServiceOptions
from encoder_service.service import Launch, run
from tensorway import flags, logs, metrics, serving, telemetry
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.options import DialOptions, ListenOptions, ObserveOptions, RegisterOptions


@flags.command(
    "tensorway-encoder",
    EncoderServiceOptions,
    EncoderOptions,
    ImageOptions,
    ListenOptions,
    EncoderRegisterOptions,
    DialOptions,
    ObserveOptions,
)
def main(
    options: EncoderServiceOptions,
    encoder: EncoderOptions,
    images: ImageOptions,
    listen: ListenOptions,
    register: RegisterOptions,
    dial: DialOptions,
    observe: ObserveOptions,
) -> None:
    """Serve an application's own encoder, and hand its results to a generator."""
    logs.setup(observe)
    telemetry.setup("tensorway-encoder", observe.otlp_endpoint)
    address = metrics.serve(observe)
    launch = Launch(options, encoder, images, listen, register, dial, address)
    serving.run(lambda stop: run(stop, launch))


if __name__ == "__main__":
    main()
