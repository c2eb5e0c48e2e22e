"""The dispatch checker finds what it is for, on canned metrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Counter, start_http_server

from tests.dispatch_check import DispatchError, burst, check, main, total


def page(ok: float, bad: float = 0, other: float = 0) -> str:
    """A worker's metrics."""
    return (
        "# HELP embed_worker_requests_total Requests that ended.\n"
        "# TYPE embed_worker_requests_total counter\n"
        f'embed_worker_requests_total{{model="m",code="OK"}} {ok}\n'
        f'embed_worker_requests_total{{model="m",code="INVALID_ARGUMENT"}} {bad}\n'
        f'embed_worker_requests_created{{model="m",code="OK"}} 1.7e9\n'
        "# TYPE embed_worker_tokens_total counter\n"
        f'embed_worker_tokens_total{{model="m"}} {other}\n'
    )


def test_a_total_is_of_all_labels_of_one_counter() -> None:
    """A failed request is work too; tokens and creation times are not requests."""
    assert total(page(7, bad=2, other=100)) == 9


def test_a_worker_without_the_counter_has_done_nothing() -> None:
    """A counter appears with the first request."""
    assert total("") == 0


def test_deltas_not_totals_are_checked() -> None:
    """What came before the burst does not count, on either kind of worker."""
    assert check([100, 50, 7], [110, 60, 7], expected={0, 1}, minimum=20) == [10, 10, 0]


def test_a_leak_is_seen() -> None:
    """One stray request to a worker of another model fails the check, and is named by index."""
    with pytest.raises(DispatchError, match="worker 2: not expected, but did 1 requests"):
        check([0, 0, 5], [10, 10, 6], expected={0, 1}, minimum=20)


def test_an_idle_expected_worker_is_seen() -> None:
    """All the load on one of two is not sharing."""
    with pytest.raises(DispatchError, match="worker 1: expected, but did nothing"):
        check([0, 3], [20, 3], expected={0, 1}, minimum=20)


def test_lost_requests_are_seen() -> None:
    """The deltas must account for the burst."""
    with pytest.raises(DispatchError, match="did 19 requests, at least 20 were sent"):
        check([0, 0], [10, 9], expected={0, 1}, minimum=20)


def test_a_restarted_worker_is_seen() -> None:
    """A counter that starts again makes every delta worthless."""
    with pytest.raises(DispatchError, match="worker 0: counter went back by 40"):
        check([50], [10], expected={0}, minimum=1)


def test_all_faults_are_told_at_once() -> None:
    """One run is enough to see the picture."""
    with pytest.raises(DispatchError, match=r"worker 0: .*; worker 1: .*; expected workers"):
        check([0, 0], [0, 4], expected={0}, minimum=4)


def test_an_index_that_is_not_there_is_a_mistake_of_the_caller() -> None:
    """It must not pass as a worker that did nothing wrong."""
    with pytest.raises(DispatchError, match=r"expected workers \[3\]: there are only 2"):
        check([0, 0], [1, 1], expected={0, 3}, minimum=1)


def test_indexes_are_places_in_the_list_of_workers() -> None:
    """Ports may be in any order."""
    counts = {"host:9": 0.0, "host:1": 0.0}

    def read(address: str) -> str:
        return page(counts[address])

    with burst(["host:9", "host:1"], expected={1}, minimum=3, read=read):
        counts["host:1"] += 3
    with (
        pytest.raises(DispatchError, match="worker 0"),
        burst(["host:9", "host:1"], expected={1}, minimum=0, read=read),
    ):
        counts["host:9"] += 1


@pytest.fixture
def worker() -> Iterator[tuple[Counter, str]]:
    """A counter on a real metrics port, and that port's address."""
    registry = CollectorRegistry()
    counter = Counter("embed_worker_requests", "Requests.", registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield counter, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_burst_is_read_from_a_real_port(worker: tuple[Counter, str]) -> None:
    """Before and after, over HTTP."""
    counter, address = worker
    counter.inc(100)

    with burst([address], expected={0}, minimum=5):
        counter.inc(5)


def test_the_command_fails_with_one_line(worker: tuple[Counter, str]) -> None:
    """A script can rely on the exit status."""
    arguments = ["--worker", worker[1], "--expect", "0", "--", sys.executable, "--version"]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 1
    assert result.stderr.startswith("worker 0: expected, but did nothing")
