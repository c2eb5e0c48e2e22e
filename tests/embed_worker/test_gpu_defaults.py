"""vLLM's settings on a GPU: what the operator gives stays, what was left open is set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from embed_worker import gpu_defaults


def arguments(**given: object) -> SimpleNamespace:
    """What of vLLM's EngineArgs is looked at, as it is without flags."""
    compilation = SimpleNamespace(cudagraph_capture_sizes=None, max_cudagraph_capture_size=None)
    left_open = {
        "max_num_seqs": None,
        "max_num_batched_tokens": None,
        "async_scheduling": None,
        "distributed_executor_backend": "uni",
        "cudagraph_capture_sizes": None,
        "max_cudagraph_capture_size": None,
        "compilation_config": compilation,
    }
    return SimpleNamespace(**{**left_open, **given})


def test_what_is_left_open_is_set() -> None:
    """Steps as large as a GPU wants them, the next one prepared while one runs."""
    gpu_defaults.fit(args := arguments())
    assert (args.max_num_seqs, args.max_num_batched_tokens) == (1024, 65536)
    assert args.async_scheduling
    assert args.cudagraph_capture_sizes[-1] == gpu_defaults.STEP_TOKENS


@pytest.mark.parametrize(
    "given",
    [
        {"max_num_seqs": 7},
        {"max_num_batched_tokens": 4096},
        {"async_scheduling": False},
        {"cudagraph_capture_sizes": [1, 2]},
    ],
)
def test_what_is_given_stays(given: dict[str, object]) -> None:
    """Also where it is slower."""
    gpu_defaults.fit(args := arguments(**given))
    assert {name: getattr(args, name) for name in given} == given


@pytest.mark.parametrize("where", ["argument", "compilation config"])
def test_a_largest_graph_is_enough_to_have_ones_own(where: str) -> None:
    """The sizes are then made from it by vLLM."""
    own = SimpleNamespace(cudagraph_capture_sizes=None, max_cudagraph_capture_size=64)
    given = (
        {"max_cudagraph_capture_size": 64} if where == "argument" else {"compilation_config": own}
    )
    gpu_defaults.fit(args := arguments(**given))
    assert args.cudagraph_capture_sizes is None


def test_engines_over_several_gpus_are_left_as_vllm_has_them() -> None:
    """Asynchronous scheduling was measured within one process only."""
    gpu_defaults.fit(args := arguments(distributed_executor_backend="mp"))
    assert args.async_scheduling is False
