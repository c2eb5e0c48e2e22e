"""A Python client of a router or a worker.

>>> with Client("127.0.0.1:50051") as client:
...     vectors = client.embed(["hello world", "goodbye"], model="minilm")
>>> vectors.shape, vectors.dtype
((2, 384), dtype('float32'))

:class:`AsyncClient` is the same for asyncio. Both raise the errors of
:mod:`tensorway.errors`, try again what is safe to try again, and give every call a
deadline.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from tensorway._client_async import AsyncClient
from tensorway._client_bulk import BatchResult
from tensorway._client_handoff import Image, SamplingOptions
from tensorway._client_requests import EmbedOptions, Inputs, Vectors
from tensorway.handoff.features import Features
from tensorway.options import DialOptions
from tensorway.v1 import generator_pb2, model_pb2

__all__ = [
    "AsyncClient",
    "BatchResult",
    "Client",
    "EmbedOptions",
    "Features",
    "Image",
    "Inputs",
    "SamplingOptions",
    "Vectors",
]

P = ParamSpec("P")
T = TypeVar("T")


class Client:
    """A client for code without asyncio; a context manager, and safe to share by threads.

    Its options and methods are those of :class:`AsyncClient`, which it runs on an event
    loop in a thread of its own.
    """

    _portal: BlockingPortal

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        dial: DialOptions | None = None,
        token: str = "",
        timeout: float = 60.0,
        direct: bool = False,
    ) -> None:
        self._client = AsyncClient(target, dial=dial, token=token, timeout=timeout, direct=direct)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the thread, and open the channel."""
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(self._portal.wrap_async_context_manager(self._client))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the channel, and end the thread."""
        self._stack.close()

    def embed(
        self,
        inputs: Inputs,
        *,
        model: str,
        timeout: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Vectors:
        """See :meth:`AsyncClient.embed`."""
        return self._call(self._client.embed, inputs, model=model, timeout=timeout, **options)

    def embed_stream(
        self, batches: Iterable[Inputs], *, model: str, **options: Unpack[EmbedOptions]
    ) -> Iterator[BatchResult]:
        """See :meth:`AsyncClient.embed_stream`."""
        return self._each(self._client.embed_stream(batches, model=model, **options))

    def encode(
        self,
        images: Sequence[Image],
        *,
        model: str,
        target_model: str = "",
        timeout: float | None = None,
    ) -> Features:
        """See :meth:`AsyncClient.encode`."""
        encode = self._client.encode
        return self._call(encode, images, model=model, target_model=target_model, timeout=timeout)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        model: str,
        images: Sequence[Image] = (),
        encoder: str = "",
        timeout: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[generator_pb2.GenerateResponse]:
        """See :meth:`AsyncClient.generate`."""
        return self._each(
            self._client.generate(
                prompt_token_ids,
                model=model,
                images=images,
                encoder=encoder,
                timeout=timeout,
                **sampling,
            )
        )

    def models(self) -> list[model_pb2.Model]:
        """See :meth:`AsyncClient.models`."""
        return self._call(self._client.models)

    def workers(self, model: str = "") -> list[model_pb2.Worker]:
        """See :meth:`AsyncClient.workers`."""
        return self._call(self._client.workers, model)

    def _call(
        self,
        method: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        result: T = self._portal.call(partial(method, *args, **kwargs))
        return result

    def _each(self, stream: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                yield self._portal.call(stream.__anext__)
        except StopAsyncIteration:
            return
        finally:
            self._portal.call(stream.aclose)
