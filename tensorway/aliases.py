"""Names that stand for models: a router's configuration, followed by clients in direct mode."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tensorway.pool import Pool

# Alias -> model -> weight.
Aliases = Mapping[str, Mapping[str, float]]


def draw(targets: Mapping[str, float], pools: Mapping[str, Pool[Any]], random: Random) -> str:
    """One of the models, by their weights; among those with a live worker, if there are any."""
    wanted = [name for name, weight in targets.items() if weight]
    known = [name for name in wanted if name in pools]
    choice = [name for name in known if pools[name].ready()] or known or wanted
    return random.choices(choice, [targets[name] for name in choice])[0]
