"""What docs/embed_worker.md and docs/migrating.md say, held against the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from embed_worker import metrics
from embed_worker.refused import REFUSED, refuse_flags
from embed_worker.service import EmbedWorkerOptions
from tensorway.v1 import embedding_pb2, model_pb2, pooling_pb2

DOCS = Path(__file__).parents[2] / "docs"
WORKER = (DOCS / "embed_worker.md").read_text()
MIGRATING = (DOCS / "migrating.md").read_text()


def test_every_flag_with_its_default() -> None:
    """The table of limits has the defaults that the code has."""
    for field in dataclasses.fields(EmbedWorkerOptions):
        flag = f"--{field.name.replace('_', '-')}"
        assert f"`{flag}" in WORKER
        if field.name.startswith("max_"):
            assert f"| `{flag}` | {field.default} |" in WORKER


def test_every_metric() -> None:
    """Each metric of the worker is in the table, under the name that Prometheus shows."""
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            assert f"`{name}`" in WORKER


def test_every_rpc() -> None:
    """Each RPC that a worker has is in the table."""
    for file in (embedding_pb2, pooling_pb2, model_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"`{method.name}`" in WORKER


def test_flags_that_pass_are_not_refused() -> None:
    """What the guide says is the same here is taken."""
    section = MIGRATING.split("## Engine flags")[1].split("\n## ")[0]
    flags = set(re.findall(r"`(--[a-z-]+)", section))
    assert len(flags) > 20
    assert not flags & REFUSED.keys()
    for flag in flags - {"--runner"}:
        refuse_flags([flag])


def test_flags_that_are_refused_are_named() -> None:
    """Every flag that the guide names as refused is."""
    section = MIGRATING.split("## Flags that are refused")[1].split("\n## ")[0]
    named = set(re.findall(r"`(--[a-z-]+[a-z])`", section))
    assert len(named) > 8
    assert named <= REFUSED.keys()
