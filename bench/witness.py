"""NVIDIA's aiperf as another load generator, so that ours need not be believed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import load
from bench.clients import NAME
from bench.gpu import make_texts
from bench.jobs import Job, Outcome

_START_SECONDS = 90.0
_QUIET = ("--no-gpu-telemetry", "--no-server-metrics", "--ui", "none", "--use-server-token-count")
# Its processes take the cores of what they measure: as few of them as it lets us have.
_SMALL = ("--workers-max", "1", "--record-processor-service-count", "1")


class Aiperf:
    """Does jobs over OpenAI's API, one `aiperf profile` each.

    `model` is a folder with a tokenizer: aiperf loads one, though it is given the texts. Its
    artifacts are kept under `folder`.
    """

    def __init__(self, program: str, model: str, folder: Path) -> None:
        self._program, self._model, self._folder = program, model, folder
        self._outcome: Outcome | None = None

    def give(self, job: Job) -> None:
        """Do the job; looks, which are not timed, are our own client's."""
        self._outcome = asyncio.run(load.run(job)) if job.look else self._profile(job)

    def outcome(self) -> Outcome:
        """What came of it."""
        assert self._outcome is not None
        return self._outcome

    def _profile(self, job: Job) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="aiperf-", dir=self._folder))
        texts = (make_texts(job.batch, job.words, job.seed + n) for n in range(load.BODIES))
        given = folder / "requests.jsonl"
        given.write_bytes(b"\n".join(msgspec.json.encode({"texts": one}) for one in texts))
        # Told to be offline, aiperf takes only names of models that it has cached, no folders.
        env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        done = subprocess.run(
            ("setpriv", "--pdeathsig", "KILL", "--", *self._command(job, given, folder)),
            timeout=job.seconds + _START_SECONDS, env=env, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"aiperf: status {done.returncode}: {done.stdout.decode()[-2000:]}")
        return outcome(_records(folder / "profile_export.jsonl"), opened=job.rate > 0)

    def _command(self, job: Job, given: Path, folder: Path) -> tuple[str, ...]:
        paced = ("--request-rate", str(job.rate), "--arrival-pattern", "constant")
        return (
            *(self._program, "profile", "--model", NAME, "--url", f"http://{job.target.address}"),
            *("--endpoint-type", "embeddings", "--tokenizer", self._model, *_QUIET, *_SMALL),
            *("--extra-inputs", f"encoding_format:{job.target.kind}"),
            *("--input-file", str(given), "--custom-dataset-type", "single_turn"),
            *("--benchmark-duration", str(job.seconds), "--output-artifact-dir", str(folder)),
            *("--warmup-request-count", str(job.callers), "--export-level", "records"),
            *(paced if job.rate else ("--concurrency", str(job.callers))),
        )


def outcome(records: Iterable[dict[str, Any]], *, opened: bool) -> Outcome:
    """The requests of aiperf's records that were measured.

    In an open loop a request's time starts when it was due, as ours does.
    """
    found, began = Outcome(), "credit_issued_ns" if opened else "request_start_ns"
    measured = [one for one in records if one["metadata"]["benchmark_phase"] == "profiling"]
    told = [one["metadata"] for one in measured if not one.get("error")]
    found.failures = len(measured) - len(told)
    found.latencies = [(one["request_end_ns"] - one[began]) / 1e6 for one in told]
    found.began = min((one[began] for one in told), default=0) / 1e9
    found.ended = max((one["request_end_ns"] for one in told), default=0) / 1e9
    return found


def _records(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(msgspec.json.decode, path.read_bytes().splitlines())
