"""`tensorway models`: what is served."""

from __future__ import annotations

from rich.table import Table

from tensorway.commands.ask import AskOptions, ask, columns, show
from tensorway.flags import command
from tensorway.options import DialOptions
from tensorway.v1 import model_pb2


@command("tensorway-models", AskOptions, DialOptions, terse=True)
def models(options: AskOptions, dial: DialOptions) -> None:
    """List the models that are served."""
    answer = ask(options, dial, "ListModels", model_pb2.ListModelsRequest())
    show(options, answer, table(answer))


def table(answer: model_pb2.ListModelsResponse) -> Table:
    """One row a model."""
    rows = columns("MODEL", "TASKS", ">WIDTH", ">MAX TOKENS", "DTYPE", ">WORKERS", "ROOT")
    for model in answer.models:
        names = ", ".join((model.name, *model.aliases))
        tasks = ", ".join(model_pb2.Task.Name(task)[5:].lower() for task in model.tasks)
        numbers = (str(model.dimensions), str(model.max_model_len))
        rows.add_row(names, tasks, *numbers, model.dtype, str(model.live_workers), model.root)
    return rows
