"""Whether a worker may join: pure checks of what it registers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensorway.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from tensorway.v1 import model_pb2

_ENDPOINT = re.compile(r"[\w-]+(\.[\w-]+){2}")
_ADDRESS = re.compile(r"\S+:\d+|unix:\S+")


def check(worker: model_pb2.Worker, others: Iterable[model_pb2.Worker]) -> None:
    """Raise unless the worker can be one of these.

    One endpoint path has one model, and all workers of a model are alike, since any of
    them may answer any request.
    """
    _check_fields(worker)
    for other in others:
        if other.endpoint == worker.endpoint and other.model.name != worker.model.name:
            raise AlreadyExists(
                f"endpoint: {worker.endpoint!r} serves model {other.model.name!r}, "
                f"got {worker.model.name!r}"
            )
        if other.model.name == worker.model.name:
            _check_alike(worker.model, other.model)


def _check_fields(worker: model_pb2.Worker) -> None:
    if not worker.model.name:
        raise InvalidArgument("registration.model.name: missing", field="registration.model.name")
    for field, pattern, expected in (
        ("endpoint", _ENDPOINT, "namespace.component.endpoint"),
        ("address", _ADDRESS, "host:port"),
    ):
        if not pattern.fullmatch(value := getattr(worker, field)):
            path = f"registration.{field}"
            raise InvalidArgument(f"{path}: expected {expected}, got {value!r}", field=path)


def _check_alike(model: model_pb2.Model, other: model_pb2.Model) -> None:
    for field in ("dimensions", "tasks"):
        ours, theirs = getattr(model, field), getattr(other, field)
        if ours and theirs and ours != theirs:
            raise FailedPrecondition(
                f"model {model.name!r}: its workers have {field} {theirs}, got {ours}"
            )
