"""Which worker gets the next request."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tensorway import balance
from tensorway.balance import POLICIES, Replica


def spread(policy: str, replicas: list[Replica], calls: int, work: float = 0.0) -> Counter[int]:
    """How often each was picked, each call ending before the next unless it has work."""
    random = Random(1)
    for turn in range(1, calls + 1):
        POLICIES[policy](replicas, random).take(work, turn)
    return Counter({index: replica.picks for index, replica in enumerate(replicas)})


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_workers_get_about_equally_much(policy: str) -> None:
    """No policy has a favourite."""
    assert all(
        80 <= count <= 120 for count in spread(policy, [Replica() for _ in range(4)], 400).values()
    )


@pytest.mark.parametrize("policy", ["least_work", "power_of_two"])
def test_work_goes_where_least_work_is(policy: str) -> None:
    """A worker with a long request gets nothing until the other has as much."""
    busy, idle = Replica(work=10_000), Replica()

    assert spread(policy, [busy, idle], 9, work=1000) == {0: 0, 1: 9}


def test_least_work_is_measured_against_capacity() -> None:
    """A worker with twice the capacity gets twice the work."""
    assert spread("least_work", [Replica(capacity=2000), Replica(capacity=1000)], 300, 10) == {
        0: 200,
        1: 100,
    }


def test_weighted_random_follows_free_capacity() -> None:
    """Three times the free capacity, about three times the requests."""
    counts = spread("weighted_random", [Replica(capacity=3000), Replica(capacity=1000)], 4000)

    assert 2.7 < counts[0] / counts[1] < 3.3


def test_a_new_worker_gets_the_next_request_but_not_all_that_follow() -> None:
    """A worker that joins late has its share at once, and no more."""
    old = [Replica(), Replica()]
    spread("least_work", old, 100)
    new = Replica()
    random = Random(1)
    order = []
    for turn in range(101, 107):
        picked = balance.least_work([*old, new], random)
        picked.take(0, turn)
        order.append(picked is new)

    assert order == [True, False, False, True, False, False]


def test_a_report_counts_only_the_work_of_others() -> None:
    """What the router sent itself is in the report too, and must not count twice."""
    replica = Replica()
    for turn in range(4):
        replica.take(100, turn)

    replica.report(requests=4, tokens=900)
    assert replica.foreign == 0
    replica.report(requests=8, tokens=900)
    assert replica.foreign == 450


def test_a_report_from_before_requests_ended_counts_them_as_ours() -> None:
    """The report was made while our request ran and arrives after it ended."""
    replica = Replica()
    replica.take(100, 1)
    replica.give(100)

    replica.report(requests=1, tokens=90)

    assert (replica.work, replica.foreign, replica.requests) == (0, 0, 0)


def test_a_full_worker_still_has_a_share() -> None:
    """A pool of full workers goes on sharing instead of dividing by nothing."""
    assert Replica(work=1e9).free > 0


@pytest.mark.parametrize("state", ["ejected", "draining", "lost"])
def test_a_worker_that_is_out_is_not_ready(state: str) -> None:
    """Each of the three reasons keeps work away."""
    replica = Replica()
    assert replica.ready

    setattr(replica, state, True)

    assert not replica.ready
