"""How much may be in a body, checked by its bytes.

Thirty MiB of empty lists, or of texts of a letter, would be 800 MiB of objects, and seconds
in which nothing else is answered.
"""

from __future__ import annotations

import msgspec

from tensorway.errors import InvalidArgument, TooLarge

# Texts, and lists, of a request: far more than the inputs that any worker takes.
MOST = 65536


class _Outer(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"[]")


def check_amounts(body: bytes) -> None:
    """Raise TooLarge for more texts or lists than are ever wanted."""
    # A quote inside a text is escaped, so that the others are the ends of texts.
    if body.count(b'"') - body.count(rb"\"") > 2 * MOST:
        raise TooLarge(f"body: expected at most {MOST} texts")
    # Brackets may also be in texts.
    if body.count(b"[") > MOST:
        _check_lists(bytes(msgspec.json.decode(body, type=_Outer).input))


def _check_lists(given: bytes) -> None:
    first = given.lstrip()[1:].lstrip()[:1] if given.startswith(b"[") else b'"'
    if first == b"[":
        raise TooLarge(f"input: expected at most {MOST} lists", field="input")
    # Fails at the first that is something else.
    try:
        msgspec.json.decode(given, type=str | list[str] if first == b'"' else str | list[int])
    except msgspec.ValidationError:
        raise InvalidArgument("input: expected inputs of one form", field="input") from None
