"""Small models, saved as folders.

Each is what a user's own model folder looks like: config, weights, tokenizer, and for some
the pooling config of sentence-transformers. Weights are random, but for the late-interaction
model, which is made of MiniLM.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

_COLBERT_WIDTH = 48
LABELS = {0: "bad", 1: "fair", 2: "good"}
_SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
_BERT = {**_SIZE, "num_attention_heads": 2, "vocab_size": 30522, "max_position_embeddings": 128}
_ST = "sentence_transformers.models."
DENSE = "2_Dense"


def save(folder: Path, tokenizer: Path, model: Any) -> None:
    """Write a model with MiniLM's tokenizer."""
    model.eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)


def save_modules(folder: Path, pooling: dict[str, Any], *more: str, lower: bool) -> None:
    """Write what sentence-transformers keeps beside a model; `more` are its last modules."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": DENSE, "Normalize": "3_Normalize"}
    kinds = ("Transformer", "Pooling", *more)
    _write(folder / "modules.json", [{"type": f"{_ST}{k}", "path": paths[k]} for k in kinds])
    _write(folder / "1_Pooling" / "config.json", pooling)
    limits = {"max_seq_length": 128, "do_lower_case": lower}
    _write(folder / "sentence_bert_config.json", limits)
    prompts = {"prompts": {"query": "Find: ", "document": "Text: "}}
    _write(folder / "config_sentence_transformers.json", prompts)


def save_dense(folder: Path) -> None:
    """Write a projection, which a tanh follows."""
    hidden = _SIZE["hidden_size"]
    sizes = {"in_features": hidden, "out_features": hidden // 2, "bias": True}
    tanh = {"activation_function": "torch.nn.modules.activation.Tanh"}
    _write(folder / DENSE / "config.json", {**sizes, **tanh})
    weights = torch.nn.Linear(hidden, hidden // 2).state_dict(prefix="linear.")
    save_file(weights, folder / DENSE / "model.safetensors", {"format": "pt"})


def save_all(folder: Path, minilm: Path) -> None:
    """Save them all, into a folder each; `minilm` is MiniLM's own."""
    torch.manual_seed(0)
    bert = transformers.BertConfig(**_BERT)
    qwen = transformers.Qwen3Config(
        **_SIZE,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=30522,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    decoder = transformers.Qwen3ForCausalLM(qwen)
    save(folder / "decoder", minilm, decoder)
    save_modules(folder / "decoder", {"pooling_mode": "lasttoken"}, "Normalize", lower=False)
    encoder = transformers.BertModel(bert)
    save(folder / "cls", minilm, encoder)
    save_modules(folder / "cls", {"pooling_mode_cls_token": True}, "Dense", lower=True)
    save_dense(folder / "cls")
    save(folder / "plain", minilm, encoder)
    scorer = transformers.BertConfig(**_BERT, num_labels=1)
    save(folder / "scorer", minilm, transformers.BertForSequenceClassification(scorer))
    classes = transformers.BertConfig(**_BERT, id2label=LABELS, label2id={})
    save(folder / "classifier", minilm, transformers.BertForSequenceClassification(classes))
    masked = transformers.BertForMaskedLM(bert)
    save(folder / "splade", minilm, masked)
    # vLLM wants the head's tied weights in the file too, as published models have them.
    weights = {name: weight.clone() for name, weight in masked.state_dict().items()}
    save_file(weights, folder / "splade" / "model.safetensors", {"format": "pt"})
    _save_colbert(folder / "colbert", minilm)


def _save_colbert(folder: Path, minilm: Path) -> None:
    """MiniLM's token states through a linear layer, in the layout of published checkpoints.

    As in colbert-ir/colbertv2.0, only the weights tell the width.
    """
    bert = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32)
    save(folder, minilm, bert)
    _write(folder / "config.json", {**bert.config.to_dict(), "architectures": ["HF_ColBERT"]})
    hidden = bert.config.hidden_size
    weights = {f"bert.{name}": weight for name, weight in bert.state_dict().items()}
    weights["linear.weight"] = torch.randn(_COLBERT_WIDTH, hidden) / _COLBERT_WIDTH**0.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
