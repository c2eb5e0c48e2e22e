"""tensorway-embed-worker MODEL [flags]: vLLM's engine flags pass through unchanged."""

from __future__ import annotations

from tensorway import flags, logs, metrics, serving, telemetry
from tensorway.options import DialOptions, ListenOptions, ObserveOptions, RegisterOptions

from .refused import refuse_flags
from .service import EmbedWorkerOptions, Launch, run


@flags.command(
    "tensorway-embed-worker",
    EmbedWorkerOptions,
    ListenOptions,
    RegisterOptions,
    DialOptions,
    ObserveOptions,
    extra_args=True,
    check=refuse_flags,
)
def main(
    options: EmbedWorkerOptions,
    listen: ListenOptions,
    register: RegisterOptions,
    dial: DialOptions,
    observe: ObserveOptions,
    engine_flags: tuple[str, ...],
) -> None:
    """Serve one embedding model: MODEL, and any engine flag of `vllm serve`."""
    logs.setup(observe)
    telemetry.setup("tensorway-embed-worker", observe.otlp_endpoint)
    launch = Launch(options, listen, register, dial, metrics.serve(observe), engine_flags)
    serving.run(lambda stop: run(stop, launch))


if __name__ == "__main__":
    main()
