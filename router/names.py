"""From the name in a request to a model: aliases, and their weights for canaries."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tensorway.aliases import Aliases, draw
from tensorway.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tensorway.pool import Pool
from tensorway.v1 import model_pb2

from .fleet import Fleet
from .worker import Worker

# Names that a NOT_FOUND lists at most.
_LISTED = 50


class Names:
    """The names that may be asked for."""

    def __init__(self, fleet: Fleet, aliases: Aliases, random: Random | None = None) -> None:
        self._fleet = fleet
        self._aliases = aliases
        self._random = random or Random()  # noqa: S311

    def pool(self, name: str, task: model_pb2.Task.ValueType | None = None) -> Pool[Worker]:
        """The pool of a name; an alias of several models is drawn anew for each request."""
        pool = self._fleet.pools.get(self.model(name))
        if pool is None:
            raise self._unknown(name)
        tasks = self._fleet.models[pool.model].tasks
        if task and tasks and task not in tasks:
            wanted = model_pb2.Task.Name(task)
            raise FailedPrecondition(f"model {pool.model!r} does not support {wanted}")
        return pool

    def model(self, name: str) -> str:
        """The model that a name stands for; the name itself when it is no alias."""
        if (targets := self._aliases.get(name)) is not None:
            return draw(targets, self._fleet.pools, self._random)
        if name in self._fleet.pools:
            return name
        owners = (model.name for model in self._fleet.models.values() if name in model.aliases)
        return next(owners, name)

    def knows(self, name: str) -> bool:
        """Whether the name stands for a model that was ever registered."""
        return self.model(name) in self._fleet.pools

    def models(self, name: str) -> list[str]:
        """The registered models that a name may stand for, the likeliest first."""
        if (targets := self._aliases.get(name)) is None:
            return [self.pool(name).model]
        found = [model for model in targets if model in self._fleet.pools]
        return sorted(found, key=lambda model: targets[model], reverse=True)

    def aliases(self, model: str) -> list[str]:
        """The configured names that may lead to a model."""
        return sorted(alias for alias, targets in self._aliases.items() if model in targets)

    def describe(self) -> list[model_pb2.Alias]:
        """The configured names as the contract shows them."""
        return [_alias(name, targets) for name, targets in self._aliases.items()]

    def known(self) -> list[str]:
        """Every name that may be asked for, sorted."""
        declared = (alias for model in self._fleet.models.values() for alias in model.aliases)
        return sorted({*self._aliases, *self._fleet.pools, *declared})

    def _unknown(self, name: str) -> Exception:
        if not name:
            return InvalidArgument("model: missing", field="model")
        if name in self._aliases:
            return Unavailable(f"model {name!r} has no live worker", reason="NO_WORKER")
        known = self.known()
        listed = ", ".join(map(repr, known[:_LISTED])) or "none"
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        return NotFound(f"model: {name!r} is not known; known: {listed}{more}", field="model")


def _alias(name: str, targets: Mapping[str, float]) -> model_pb2.Alias:
    shown = (model_pb2.AliasTarget(model=model, weight=w) for model, w in targets.items())
    return model_pb2.Alias(name=name, targets=shown)
