"""Prompts of generators: chat messages to text by the model's template, text to token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tensorway.errors import InvalidArgument, NotFound
from tensorway.flags import BadFlag

_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Prompter:
    """The tokenizer and the chat template in a model's folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self._is_byte_level = "ByteLevel" in str(self._tokenizer.decoder)
        self._special = self._tokenizer.get_added_tokens_decoder()
        self._tokens = {key: _content(config.get(key)) for key in ("bos_token", "eos_token")}
        template = folder / "chat_template.jinja"
        source = template.read_text() if template.exists() else config.get("chat_template")
        self._template = _environment().from_string(source) if source else None

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat in which it is the assistant's turn."""
        if self._template is None:
            raise InvalidArgument("messages: the model has no chat template", field="messages")
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, **self._tokens
            )
        except TemplateError as error:
            raise InvalidArgument(f"messages: {error}", field="messages") from None
        return self._encode(text, special=False)

    def text(self, prompt: str) -> list[int]:
        """Token ids of a text, with the special tokens of the tokenizer."""
        return self._encode(prompt, special=True)

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters."""
        token: str = self._tokenizer.id_to_token(token_id) or ""
        if token_id in self._special:
            return token.encode()
        if self._is_byte_level and _BYTES.keys() >= set(token):
            return bytes(map(_BYTES.__getitem__, token))
        if byte := _BYTE.fullmatch(token):
            return bytes.fromhex(byte[1])
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def _encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids


def load(named: Sequence[str]) -> dict[str, Prompter]:
    """Prompters by model, from values of ``--generator``: MODEL=FOLDER."""
    return dict(_load(value) for value in named)


def find(prompters: Mapping[str, Prompter], model: str) -> Prompter:
    """The prompter of a model; raises NotFound when there is none."""
    if model not in prompters:
        known = ", ".join(map(repr, sorted(prompters))) or "none"
        raise NotFound(f"model: {model!r} does not generate here; known: {known}")
    return prompters[model]


def _load(value: str) -> tuple[str, Prompter]:
    model, _, folder = value.partition("=")
    if not model or not folder:
        raise BadFlag(f"--generator: expected MODEL=FOLDER, got {value!r}")
    try:
        return model, Prompter(Path(folder))
    except Exception as error:
        raise BadFlag(f"--generator: no usable tokenizer in {folder}: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    # Templates are written for the environment that transformers gives them.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _byte_level() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Bytes that can be printed stand for themselves, the others follow from U+0100 on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_level()


def _content(token: Any) -> str:
    """A special token, which some files write as an object."""
    return (token.get("content") if isinstance(token, dict) else token) or ""
