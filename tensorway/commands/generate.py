"""`tensorway generate`: ask a generator, about images too."""

from __future__ import annotations

import base64
import json
import mimetypes
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click

from tensorway.credentials import read_tokens
from tensorway.flags import BadFlag, argument, command, flag
from tensorway.options import Finite, Seconds

_PLACE = "{image}"
_URLS = ("data:", "http://", "https://")


@dataclass(frozen=True)
class GenerateOptions:
    """What to ask, and whom."""

    prompt: str = argument("-")
    model: str = flag("", help="Model that answers; needed.")
    image: tuple[str, ...] = flag((), help="Image file, or its URL; several may be given.")
    system: str = flag("", help="What the model is told before the prompt.")
    max_tokens: int | None = flag(
        None, help="Most tokens of the answer.", type=click.IntRange(min=1)
    )
    temperature: float | None = flag(
        None, help="0: the likeliest token always.", type=Finite(min=0, max=2)
    )
    rest: str = flag("http://127.0.0.1:8000", help="URL of the REST shim.")
    rest_ca: Path | None = flag(None, help="CA (PEM) that an https shim's certificate is from.")
    token_file: Path | None = flag(None, help="File with the bearer token to send.")
    timeout: float = flag(
        600.0, help="Seconds to wait for the next token.", type=Seconds(min=0, min_open=True)
    )
    json: bool = flag(False, help="The whole answer as JSON, once it is there.")

    def __post_init__(self) -> None:
        if not self.model:
            raise BadFlag("--model: which one? `tensorway models` lists what is served")
        if not self.rest.startswith(("http://", "https://")):
            raise BadFlag(f"--rest: expected http://... or https://..., got {self.rest}")


@command("tensorway-generate", GenerateOptions, terse=True)
def generate(options: GenerateOptions) -> None:
    """Ask a generator, and print its answer as it comes.

    tensorway generate "What is this?" --model MODEL --image photo.jpg: the prompt goes
    through the model's chat template in the REST shim, images through the encoder service.
    An image stands where {image} is in the prompt, or else before it. Without a prompt, or
    with -, standard input is read.

    Exit status: 0 answered, 1 the service failed or refused, 2 wrong flags or files.
    """
    with _answer(options) as response:
        if options.json:
            click.echo(json.dumps(json.load(response), indent=2))
            return
        for text in _texts(response):
            click.echo(text, nl=False)
            sys.stdout.flush()
        click.echo()


def body(options: GenerateOptions, prompt: str) -> dict[str, Any]:
    """What is asked, in OpenAI's shape."""
    content = parts(prompt, options.image) if options.image else prompt
    system = [{"role": "system", "content": options.system}] if options.system else []
    return {
        "model": options.model,
        "messages": [*system, {"role": "user", "content": content}],
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "stream": not options.json,
    }


def parts(prompt: str, images: Sequence[str]) -> list[dict[str, Any]]:
    """The prompt with an image in each ``{image}``; images without a place come first."""
    first, *rest = prompt.split(_PLACE)
    if (unplaced := len(images) - len(rest)) < 0:
        raise BadFlag(f"--image: the prompt has {len(rest)} {_PLACE}, got {len(images)} images")
    shown: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": to_url(image)}} for image in images
    ]
    texts = [{"type": "text", "text": text} for text in (first, *rest)]
    placed = chain.from_iterable(zip(shown[unplaced:], texts[1:], strict=True))
    return [part for part in (*shown[:unplaced], texts[0], *placed) if part.get("text") != ""]


def to_url(image: str) -> str:
    """The URL of an image; that of a file holds the file."""
    if image.startswith(_URLS):
        return image
    kind = mimetypes.guess_type(image)[0] or "application/octet-stream"
    try:
        data = base64.b64encode(Path(image).read_bytes()).decode()
    except OSError as error:
        raise BadFlag(f"--image: {error}") from None
    return f"data:{kind};base64,{data}"


@contextmanager
def _answer(options: GenerateOptions) -> Iterator[Any]:
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    url = f"{options.rest.rstrip('/')}/v1/chat/completions"
    headers = {"content-type": "application/json"}
    for token in read_tokens(options.token_file)[:1]:
        headers["authorization"] = f"Bearer {token.decode()}"
    request = urllib.request.Request(  # noqa: S310, checked to be http or https
        url, json.dumps(body(options, prompt)).encode(), headers
    )
    context = ssl.create_default_context(cafile=options.rest_ca) if options.rest_ca else None
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=options.timeout, context=context
        ) as response:
            yield response
    except urllib.error.HTTPError as error:
        raise click.ClickException(f"{url}: {_message(error)}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise click.ClickException(f"{url}: {getattr(error, 'reason', error)}") from None


def _texts(response: Any) -> Iterator[str]:
    """The pieces of text in server-sent events; an answer that breaks off is an error."""
    for line in response:
        name, _, data = line.decode().strip().partition(": ")
        if name != "data":
            continue
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise click.ClickException(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""
    raise click.ClickException("the answer broke off")


def _message(error: urllib.error.HTTPError) -> str:
    """What an answer in OpenAI's shape says, or else its status."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)
