"""How much work is let in: a limit for each model and one for each caller."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from tensorway.errors import ResourceExhausted, TooLarge

# When a refused caller is told to come back, in seconds.
RETRY_SECONDS = 1.0


class Limit:
    """Tokens in flight for each key; 0 is no limit."""

    def __init__(self, flag: str, tokens: float) -> None:
        self._held: dict[str, float] = {}
        self._flag = flag
        self._tokens = tokens

    def fits(self, key: str, work: float) -> bool:
        """Whether so many tokens of the key's share are there."""
        return not self._tokens or self._held.get(key, 0.0) + work <= self._tokens

    def take(self, key: str, work: float) -> None:
        """Take so many tokens of the key's share; refuses at once when they are not there."""
        held = self._held.get(key, 0.0)
        if not self.fits(key, work):
            self._refuse(held, work)
        self._held[key] = held + work

    def holds(self, key: str) -> bool:
        """Whether any tokens of the key's share are taken."""
        return key in self._held

    def give(self, key: str, work: float) -> None:
        """Give them back."""
        self._held[key] -= work
        if self._held[key] < 1:
            del self._held[key]

    def _refuse(self, held: float, work: float) -> None:
        asked = f"about {work:.0f} tokens asked for, {self._flag} allows {self._tokens:.0f}"
        if work > self._tokens:
            raise TooLarge(f"the request is too large: {asked}")
        raise ResourceExhausted(
            f"too much work in flight: {asked}, {held:.0f} are taken",
            retry_after=RETRY_SECONDS,
        )


class Admission:
    """The limits on a router's work."""

    def __init__(self, model_limit: float, caller_limit: float) -> None:
        self.models = Limit("--model-limit", model_limit)
        self.callers = Limit("--caller-limit", caller_limit)
        self._freed = asyncio.Event()

    def take(self, model: str, caller: str, work: float) -> None:
        """Take so many tokens for a model and a caller, or neither."""
        self.models.take(model, work)
        try:
            self.callers.take(caller, work)
        except ResourceExhausted:
            self.models.give(model, work)
            raise

    def give(self, model: str, caller: str, work: float) -> None:
        """Give them back."""
        self.models.give(model, work)
        self.callers.give(caller, work)
        self._freed.set()

    async def room(self, model: str, caller: str, work: float, seconds: float) -> None:
        """Wait until that much would be let in, or so many seconds, or until it is idle."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy(model, caller, work):
                    self._freed.clear()
                    await self._freed.wait()

    def _busy(self, model: str, caller: str, work: float) -> bool:
        fits = self.models.fits(model, work) and self.callers.fits(caller, work)
        return not fits and self.models.holds(model)


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Who calls: by token, or else by the address of their machine."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return str(value)
    return context.peer().rpartition(":")[0]
