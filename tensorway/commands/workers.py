"""`tensorway workers`: who serves it, and how busy they are."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from tensorway.commands.ask import AskOptions, ask, columns, show
from tensorway.flags import command, flag
from tensorway.options import DialOptions
from tensorway.v1 import model_pb2


@dataclass(frozen=True)
class WorkersOptions:
    """Which workers."""

    model: str = flag("", help="Only workers of this model, by name or alias.")


@command("tensorway-workers", WorkersOptions, AskOptions, DialOptions, terse=True)
def workers(which: WorkersOptions, options: AskOptions, dial: DialOptions) -> None:
    """List the workers, and the work that each has now."""
    request = model_pb2.ListWorkersRequest(model=which.model)
    answer = ask(options, dial, "ListWorkers", request)
    show(options, answer, table(answer))


def table(answer: model_pb2.ListWorkersResponse) -> Table:
    """One row a worker."""
    rows = columns("ENDPOINT", "MODEL", "ADDRESS", "STATE", ">REQUESTS", ">TOKENS", "METRICS")
    for worker in answer.workers:
        state = model_pb2.WorkerState.Name(worker.state)[13:].lower()
        load = (str(worker.load.requests), str(worker.load.tokens))
        place = (worker.endpoint, worker.model.name, worker.address)
        rows.add_row(*place, state, *load, worker.metrics_address or "-")
    return rows
