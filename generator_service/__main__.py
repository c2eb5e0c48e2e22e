"""tensorway-generator MODEL [flags]: vLLM's engine flags pass through unchanged."""

from __future__ import annotations

from generator_service.options import GeneratorOptions, GeneratorRegisterOptions
from generator_service.service import Launch, run
from tensorway import flags, logs, metrics, serving, telemetry
from tensorway.encoding.options import EncoderOptions, ImageOptions
from tensorway.options import DialOptions, ListenOptions, ObserveOptions, RegisterOptions


@flags.command(
    "tensorway-generator",
    GeneratorOptions,
    EncoderOptions,
    ImageOptions,
    ListenOptions,
    GeneratorRegisterOptions,
    DialOptions,
    ObserveOptions,
    extra_args=True,
)
def main(
    options: GeneratorOptions,
    encoder: EncoderOptions,
    images: ImageOptions,
    listen: ListenOptions,
    register: RegisterOptions,
    dial: DialOptions,
    observe: ObserveOptions,
    engine_flags: tuple[str, ...],
) -> None:
    """Generate with one text-only model: MODEL, and any engine flag of `vllm serve`."""
    logs.setup(observe)
    telemetry.setup("tensorway-generator", observe.otlp_endpoint)
    address = metrics.serve(observe)
    launch = Launch(options, encoder, images, listen, register, dial, address, engine_flags)
    serving.run(lambda stop: run(stop, launch))


if __name__ == "__main__":
    main()
