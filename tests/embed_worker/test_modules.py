"""What a sentence-transformers folder asks for that vLLM does not do: refused or warned of."""

from __future__ import annotations

from typing import Any

import pytest

from embed_worker import modules
from tensorway.flags import BadFlag

OLD = "sentence_transformers.models."
NEW = "sentence_transformers.sentence_transformer.modules.pooling."


def folder(pooling: dict[str, Any] | None, *kinds: str, **files: Any) -> modules.Read:
    """A folder with this pooling config and modules of these types."""
    given: dict[str, Any] = {f"{name}.json": content for name, content in files.items()}
    given["modules.json"] = [{"type": kind, "path": kind[:9]} for kind in kinds]
    if pooling is not None:
        given["modules.json"].append({"type": f"{OLD}Pooling", "path": "1_Pooling"})
        given["1_Pooling/config.json"] = pooling
    return given.get


OLD_MODES = ["cls_token", "mean_tokens", "lasttoken"]
NEW_MODES = ["cls", "mean", "lasttoken"]
OTHERS = ["max", "max_tokens", "mean_sqrt_len_tokens", "weightedmean", "weightedmean_tokens"]


@pytest.mark.parametrize("mode", OLD_MODES)
def test_poolings_of_older_folders(mode: str) -> None:
    """One flag of many is set; flags that are no modes do not count."""
    config = {f"pooling_mode_{other}": other == mode for other in [*OLD_MODES, *OTHERS]}
    read = folder({"word_embedding_dimension": 64, "include_prompt": True, **config})
    assert modules.pooling_modes(read) == [mode]
    modules.check(read, pooling_given=False)


@pytest.mark.parametrize("mode", NEW_MODES)
def test_poolings_of_newer_folders(mode: str) -> None:
    """The mode is named, alone or in a list."""
    for named in (mode, [mode]):
        read = folder({"embedding_dimension": 64, "pooling_mode": named})
        assert modules.pooling_modes(read) == [mode]
        modules.check(read, pooling_given=False)


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        *(pytest.param({"pooling_mode": mode}, mode, id=mode) for mode in OTHERS),
        *(pytest.param({f"pooling_mode_{mode}": True}, mode, id=f"old {mode}") for mode in OTHERS),
        pytest.param({"pooling_mode": ["cls", "mean"]}, "cls and mean", id="two"),
        pytest.param(
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "cls_token and mean_tokens",
            id="old two",
        ),
    ],
)
def test_poolings_that_vllm_does_not_have(config: dict[str, Any], asked: str) -> None:
    """Refused, where vLLM would silently take another; the caller may choose one."""
    with pytest.raises(BadFlag, match=f"its pooling is {asked}, vLLM has cls, mean and lasttoken"):
        modules.check(folder(config), pooling_given=False)
    modules.check(folder(config), pooling_given=True)


def test_a_folder_that_says_nothing() -> None:
    """No modules, or a pooling config that is not where it should be."""
    lost = folder(None, f"{OLD}Transformer", f"{NEW}Pooling")
    for read in (dict[str, Any]().get, lost):
        assert modules.pooling_modes(read) == []
        modules.check(read, pooling_given=False)


def test_modules_that_vllm_passes_over(caplog: pytest.LogCaptureFixture) -> None:
    """Each is named in a warning; those that vLLM applies are not."""
    applied = [f"{OLD}{kind}" for kind in ("Transformer", "Dense", "Normalize")]
    modules.check(folder({"pooling_mode": "cls"}, *applied), pooling_given=False)
    assert not caplog.messages
    modules.check(folder({"pooling_mode": "cls"}, f"{OLD}LayerNorm"), pooling_given=False)
    assert caplog.messages == [
        "vLLM does not apply the model's module LayerNorm: vectors may differ"
    ]


def test_prompts(caplog: pytest.LogCaptureFixture) -> None:
    """Offered as the folder has them, but not where they must be left out of the pooling."""
    files = {"config_sentence_transformers": {"prompts": {"query": "Find: "}}}
    assert modules.prompts(folder({"pooling_mode": "cls"}, **files)) == {"query": "Find: "}
    assert modules.prompts(dict[str, Any]().get) == {}
    assert not caplog.messages
    assert modules.prompts(folder({"pooling_mode": "cls", "include_prompt": False}, **files)) == {}
    assert "leaves prompts out of its pooling" in caplog.text
