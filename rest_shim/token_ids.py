"""What lists of token ids in a request mean: the model's own ids, or another vocabulary's.

OpenAI's clients know only OpenAI's tokenizer: LangChain, by default, cuts texts with it and
sends the ids. Many of them are ids of any model, so nobody can see that they are wrong.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from pathlib import Path

from tensorway.errors import InvalidArgument
from tensorway.flags import BadFlag

ToText = Callable[[str, list[int]], str]
"""The text of a field's token ids."""

MODEL, REFUSE = "model", "refuse"
ADVICE = "LangChain sends the texts themselves with check_embedding_ctx_length=False"


class Vocabulary:
    """A vocabulary in the form of OpenAI's ``tiktoken``: base64 of a token, and its id, a line."""

    def __init__(self, file: Path) -> None:
        lines = map(bytes.split, file.read_bytes().splitlines())
        self._tokens = {int(rank): binascii.a2b_base64(token) for token, rank in lines}

    def text(self, field: str, ids: list[int]) -> str:
        """The text of token ids; raises InvalidArgument for one that is none here."""
        if unknown := set(ids) - self._tokens.keys():
            index, odd = next((i, v) for i, v in enumerate(ids) if v in unknown)
            place = f"{field}[{index}]"
            expected = "expected an id of the vocabulary that this server takes (--token-ids)"
            raise InvalidArgument(f"{place}: {expected}, got {odd}", field=place)
        # A long text may have been cut inside a character.
        return b"".join(map(self._tokens.__getitem__, ids)).decode(errors="replace")


def load(value: str) -> ToText | None:
    """What ``--token-ids`` says; nothing when ids go to the model as they are."""
    if value == MODEL:
        return None
    if value == REFUSE:
        return refuse
    try:
        return Vocabulary(Path(value)).text
    except (OSError, ValueError) as error:
        raise BadFlag(
            f"--token-ids: expected {MODEL}, {REFUSE} or a vocabulary of tiktoken, "
            f"got {value!r}: {error}"
        ) from error


def refuse(field: str, ids: list[int]) -> str:
    """Raise InvalidArgument."""
    del ids
    raise InvalidArgument(
        f"{field}: expected a text, got token ids, which this server does not take "
        f"(--token-ids); {ADVICE}",
        field=field,
    )
