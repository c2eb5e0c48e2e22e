"""Flags of the router."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from tensorway import balance, pool, retry
from tensorway.flags import BadFlag, flag
from tensorway.options import PORT, SECONDS, Finite, ListenOptions, Seconds

from .config import load

COUNT = click.IntRange(min=0)
# A worker reports every second.
LEASE = Seconds(min=2)
PART = Finite(0, 1)


@dataclass(frozen=True)
class RouterListenOptions(ListenOptions):
    """Where the router listens."""

    port: int = flag(50051, help="gRPC port; 0 takes a free one.", type=PORT)


@dataclass(frozen=True)
class RouterOptions:
    """How the router shares work, and how much of it."""

    policy: Literal["least_work", "power_of_two", "weighted_random", "round_robin"] = flag(
        "least_work", help="How to pick a worker."
    )
    config: Path | None = flag(None, help="TOML file of aliases and static workers.")
    processes: int = flag(
        1, help="Router processes that share the port.", type=click.IntRange(1, 64)
    )
    follow: str | None = flag(
        None, help="Router, host:port, whose workers this one has too; it takes registrations."
    )
    lease: float = flag(
        5.0, help="Seconds without a load report after which a worker is out.", type=LEASE
    )
    settle: float = flag(
        5.0,
        help="Seconds after the start in which a call for an unknown model waits for it.",
        type=SECONDS,
    )
    direct: bool = flag(True, help="Tell clients the workers' addresses, for direct mode.")
    split_inputs: int = flag(
        64, help="Inputs from which on a batch is spread over workers; 0: never.", type=COUNT
    )
    shard_inputs: int = flag(
        16, help="Fewest inputs that a worker gets of such a batch.", type=click.IntRange(min=1)
    )
    max_inputs: int = flag(
        2048, help="Most inputs in an Embed request.", type=click.IntRange(min=1)
    )
    stream_window: int = flag(
        32, help="Requests of one EmbedStream in flight at once.", type=click.IntRange(min=1)
    )
    stream_timeout: float = flag(
        600.0, help="Deadline in seconds for Generate and Encode calls that set none.", type=SECONDS
    )
    model_limit: int = flag(
        4_000_000, help="Tokens in flight for one model; more is refused. 0: no limit.", type=COUNT
    )
    caller_limit: int = flag(
        2_000_000, help="Tokens in flight for one caller; more is refused. 0: no limit.", type=COUNT
    )
    retry_ratio: float = flag(0.2, help="Retries that each request pays for.", type=PART)
    retry_reserve: int = flag(500, help="Retries allowed at once after a quiet time.", type=COUNT)
    eject_failures: int = flag(
        5, help="Failures in a row that eject a worker.", type=click.IntRange(min=1)
    )
    eject_probes: int = flag(
        3, help="Good probes in a row that bring it back.", type=click.IntRange(min=1)
    )
    hedge_quantile: float = flag(
        0.0, help="Try twice what is slower than this part of the calls; 0: never.", type=PART
    )

    def __post_init__(self) -> None:
        if self.processes > 1 and self.follow:
            raise BadFlag("--processes and --follow: a router that follows is one process")
        # A bad file is a bad flag: it stops the process before anything is opened.
        load(self.config)

    @property
    def is_follower(self) -> bool:
        """Whether this is one more process of a router on this machine."""
        return (self.follow or "").startswith("unix:")

    @property
    def shares_port(self) -> bool:
        """Whether other processes of this router are on the same port."""
        return self.processes > 1 or self.is_follower

    def rules(self) -> pool.Rules:
        """The part of the options that pools follow."""
        return pool.Rules(
            policy=balance.POLICIES[self.policy],
            outliers=retry.Outliers(self.eject_failures, self.eject_probes),
            retry_ratio=self.retry_ratio,
            retry_reserve=self.retry_reserve,
            split_inputs=self.split_inputs,
            shard_inputs=self.shard_inputs,
            hedge_quantile=self.hedge_quantile,
        )
