"""vLLM's settings on a GPU, where its own defaults are not the best for vectors."""

from __future__ import annotations

from typing import Any

# A step of 64 ki tokens keeps an H200 busy (docs/performance.md). vLLM's own defaults
# are made for generation, where a step this long would stall other requests' tokens.
_LIMITS = {"max_num_seqs": 1024, "max_num_batched_tokens": 65536}
# Tokens of a step for which a CUDA graph is kept. vLLM stops at 512, and a step of 1200
# tokens, 15 short texts, then takes 16 ms of launches instead of 7 ms.
_GRAPH_SIZES = [
    *(1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792),
    *(2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192),
]
# With vLLM's asynchronous scheduling the Python of one step runs while the GPU does the one
# before: a large request is then best cut into steps that still have a graph.
STEP_TOKENS = _GRAPH_SIZES[-1]


def fit(args: Any) -> None:
    """Set what was left open of vLLM's ``EngineArgs``."""
    for name, value in _LIMITS.items():
        setattr(args, name, getattr(args, name) or value)
    if args.async_scheduling is None:
        args.async_scheduling = args.distributed_executor_backend == "uni"
    compilation = args.compilation_config
    given = (args.cudagraph_capture_sizes, args.max_cudagraph_capture_size)
    own = (compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size)
    if not any((*given, *own)):
        args.cudagraph_capture_sizes = _GRAPH_SIZES
