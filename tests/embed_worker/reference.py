"""What plain transformers makes of a model.

Run as a program it answers calls of these functions, a line of JSON each: importing torch
takes longer than all that is asked of it.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from tests.embed_worker.small_models import DENSE, save_all


def states(folder: str, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Last hidden states of each sequence, [tokens, hidden]."""
    model = _load(transformers.AutoModel, folder)
    return [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in sequences]


def pooled(folder: str, sequences: list[list[int]], how: str) -> list[list[float]]:
    """A unit vector for each sequence."""
    pick = {"mean": lambda s: s.mean(0), "cls": lambda s: s[0], "last": lambda s: s[-1]}[how]
    vectors = torch.stack([pick(state) for state in states(folder, sequences)])
    return torch.nn.functional.normalize(vectors).tolist()


def projected(folder: str, sequences: list[list[int]]) -> list[list[float]]:
    """The first token's state through the folder's dense module, of whatever length."""
    weights = load_file(Path(folder) / DENSE / "model.safetensors")
    first = torch.stack([state[0] for state in states(folder, sequences)])
    return torch.tanh(first @ weights["linear.weight"].T + weights["linear.bias"]).tolist()


def token_vectors(folder: str, sequences: list[list[int]]) -> list[list[list[float]]]:
    """A unit vector for each token."""
    return [torch.nn.functional.normalize(s).tolist() for s in states(folder, sequences)]


def late(folder: str, sequences: list[list[int]]) -> list[list[list[float]]]:
    """ColBERT: a unit vector for each token, projected by the checkpoint's linear layer."""
    linear = load_file(Path(folder) / "model.safetensors")["linear.weight"]
    rows = [state @ linear.T for state in states(folder, sequences)]
    return [torch.nn.functional.normalize(row).tolist() for row in rows]


def logits(folder: str, pairs: list[list[str]], **tokenize: Any) -> torch.Tensor:
    """What a sequence classifier gives for texts, or pairs of them, [n, labels]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = _load(transformers.AutoModelForSequenceClassification, folder)
    rows = [model(**tokenizer(*pair, return_tensors="pt", **tokenize)).logits[0] for pair in pairs]
    return torch.stack(rows)


def scores(folder: str, pairs: list[list[str]]) -> list[float]:
    """Relevance of each pair."""
    return torch.sigmoid(logits(folder, pairs)[:, 0]).tolist()


def cut_scores(folder: str, pairs: list[list[str]], limit: int) -> list[float]:
    """Relevance of each pair, cut to so many tokens."""
    return torch.sigmoid(logits(folder, pairs, truncation=True, max_length=limit)[:, 0]).tolist()


def classes(folder: str, texts: list[list[str]]) -> list[list[float]]:
    """Probabilities of each text's classes."""
    return torch.softmax(logits(folder, texts), -1).tolist()


def sparse(folder: str, sequences: list[list[int]]) -> list[dict[int, float]]:
    """SPLADE: log(1 + relu(logits)), the largest over all tokens, where above 0."""
    model = _load(transformers.AutoModelForMaskedLM, folder)
    weights = []
    for ids in sequences:
        rows = torch.log1p(torch.relu(model(input_ids=torch.tensor([ids])).logits[0]))
        row = rows.max(0).values
        weights.append({i: row[i].item() for i in torch.nonzero(row)[:, 0].tolist()})
    return weights


def tokens(folder: str, texts: list[str]) -> list[list[int]]:
    """Ids that the model's own tokenizer gives."""
    return transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]


def small_models(folder: str, minilm: str) -> None:
    """Write the models of small_models.py."""
    save_all(Path(folder), Path(minilm))


@cache
def _load(kind: Any, folder: str) -> Any:
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def main() -> None:
    """Answer until the caller leaves."""
    answers = sys.stdout
    # What the libraries print is no answer.
    with redirect_stdout(sys.stderr), torch.inference_mode():
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(globals()[name](*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
