"""What happens around every call: token, deadline, trace, request id, metrics, errors.

The wrappers are made once, at registration, instead of by interceptors on each call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tensorway import credentials, errors, logs, messages, metrics, telemetry
from tensorway.channels import REQUEST_ID
from tensorway.deadline import within
from tensorway.messages import Codec
from tensorway.streams import Drained

LOG = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_CLOSE_SECONDS = 1.0
# For so long after the signal a stream is read on: its caller may have sent more before it.
_LAST_SECONDS = 1.0

SHUTTING_DOWN = "the server is shutting down"

# gRPC cancels a call whose caller left, or fails to write to it, whichever comes first.
_CALLER_LEFT = (asyncio.CancelledError, grpc.aio.InternalError)


@dataclass(frozen=True)
class Service:
    """One gRPC service of the contract, and the object that implements it."""

    descriptor: ServiceDescriptor
    servicer: object
    codecs: Mapping[str, tuple[Codec | None, Codec | None]] = field(default_factory=dict)
    """Method -> (request deserializer, response serializer) where messages stay bytes."""
    lasting: frozenset[str] = frozenset()
    """Methods whose calls only end when somebody leaves; shutdown does not wait for them."""
    endless: frozenset[str] = frozenset()
    """Methods that take requests for as long as a caller likes, each answered by itself;
    shutdown soon takes no more of them, and ends the call once what it took is answered."""
    open: bool = False
    """Whether calls need no token (health checks of an orchestrator have none)."""


class Calls:
    """The calls in flight of one server, and the rules that hold for all of them."""

    def __init__(
        self, tokens: tuple[bytes, ...], default_timeout: float, max_message_bytes: int
    ) -> None:
        self._tokens = tokens
        self._default_timeout = default_timeout
        self._max_message_bytes = max_message_bytes
        self._tasks: set[asyncio.Task[Any]] = set()
        # Until the answer is written, which is after all that happens around the call.
        self._open: dict[asyncio.Task[Any], tuple[Context, bool]] = {}
        self._closed = self._expired = False
        self._last: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def handler(self, service: Service) -> grpc.GenericRpcHandler[Any, Any]:
        """The gRPC handler of a service, with these rules around each method."""
        methods = {m.name: self._method(service, m) for m in service.descriptor.methods}
        return grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)

    def close(self) -> None:
        """From now on answer every new call with UNAVAILABLE."""
        self._closed = True
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self._end_streams)

    async def finish(self, seconds: float) -> bool:
        """Wait until calls in flight are answered, at most so long; whether they are."""
        try:
            async with asyncio.timeout(seconds):
                # Calls that were accepted at the last moment come while others are waited for.
                while finite := [task for task, (_, lasting) in self._open.items() if not lasting]:
                    await asyncio.wait(finite)
        except TimeoutError:
            return False
        return True

    async def written(self) -> None:
        """Wait until the answers of ended calls are written; bounded."""
        if self._open:
            await asyncio.wait(set(self._open), timeout=_CLOSE_SECONDS)

    def busy(self) -> set[int]:
        """The clients' ports, on whatever machine, that wait for an answer."""
        ports = [context.peer().rpartition(":")[2] for context, _ in self._open.values()]
        return {int(port) for port in ports if port.isdigit()}

    def end(self) -> None:
        """End every call that is left, and every one that still comes, with UNAVAILABLE."""
        self._expired = True
        for task in self._tasks:
            task.cancel()

    def _end_streams(self) -> None:
        if not self._last.done():
            self._last.set_result(None)

    def _method(
        self, service: Service, method: MethodDescriptor
    ) -> grpc.RpcMethodHandler[Any, Any]:
        name = f"{service.descriptor.full_name}/{method.name}"
        streaming = method.client_streaming or method.server_streaming
        rules = _Rules(name, streaming, method.name in service.lasting, service.open)
        decode, encode = self._codecs(service, method)
        function = getattr(service.servicer, method.name)
        if inspect.isasyncgenfunction(function):
            function = _written(function)
        if method.name in service.endless:
            function = _drained(function, self._last)
        # A single message is coded inside the call, where errors are translated.
        handle = self._handle(
            function,
            rules,
            messages.same if method.client_streaming else decode,
            messages.same if method.server_streaming else encode,
        )
        return _KINDS[method.client_streaming, method.server_streaming](
            handle,
            decode if method.client_streaming else None,
            encode if method.server_streaming else None,
        )

    def _codecs(self, service: Service, method: MethodDescriptor) -> tuple[Codec, Codec]:
        parse, serialize = service.codecs.get(
            method.name,
            (
                GetMessageClass(method.input_type).FromString,
                GetMessageClass(method.output_type).SerializeToString,
            ),
        )
        decode = messages.decoder(parse or messages.same, method.input_type.name)
        return decode, messages.encoder(serialize or messages.same, self._max_message_bytes)

    def _handle(self, function: Any, rules: _Rules, decode: Codec, encode: Codec) -> Any:
        async def handle(request: Any, context: Context) -> Any:
            async with self._call(rules, context):
                return encode(await function(decode(request), context))

        return handle

    @asynccontextmanager
    async def _call(self, rules: _Rules, context: Context) -> AsyncIterator[None]:
        started, code = time.perf_counter(), grpc.StatusCode.UNKNOWN
        error: errors.TensorwayError | None = None
        admitted = False
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open[task] = context, rules.lasting or self._closed
        task.add_done_callback(self._open.pop)
        headers = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        logs.request_id.set(headers.get(REQUEST_ID, "")[:128] or secrets.token_hex(16))
        with telemetry.server_span(rules.name, headers) as span:
            try:
                self._admit(rules, headers)
                admitted = True
                async with self._in_time(rules, context):
                    yield
                code = grpc.StatusCode.OK
            except grpc.aio.AbortError:
                code = _code(context)
                raise
            except (Exception, asyncio.CancelledError) as raised:
                error = self._translate(raised, context)
                code = errors.grpc_code(error)
                if isinstance(raised, _CALLER_LEFT) and not self._expired:
                    raise asyncio.CancelledError from raised
            finally:
                self._tasks.discard(task)
                telemetry.end_rpc(span, rules.name, code)
                metrics.count_rpc(rules.name, code, time.perf_counter() - started)
        if error is None:
            return
        ended, error = errors.abort(context, error), None
        # After it was counted: who has the answer may look at the counters next.
        try:
            await ended
        except grpc.aio.AbortError as aborted:
            # gRPC keeps it, and raises it again by itself. What it knows of the error and of us
            # would keep the request in memory until garbage is collected.
            aborted.__context__ = aborted.__traceback__ = None
            # Who was not let in must not go on.
            if not admitted:
                raise

    def _admit(self, rules: _Rules, headers: Mapping[str, str]) -> None:
        if self._expired or (self._closed and not rules.open):
            raise errors.Unavailable(SHUTTING_DOWN, reason="SHUTTING_DOWN")
        if self._tokens and not rules.open:
            credentials.check_token(headers.get("authorization", ""), self._tokens)

    def _in_time(self, rules: _Rules, context: Context) -> AbstractAsyncContextManager[None]:
        given = rules.streaming or context.time_remaining() is not None
        return nullcontext() if given else within(self._default_timeout)

    def _translate(self, raised: BaseException, context: Context) -> errors.TensorwayError:
        if isinstance(raised, _CALLER_LEFT):
            return self._cancelled(context)
        return translate(raised)

    def _cancelled(self, context: Context) -> errors.TensorwayError:
        if context.time_remaining() == 0:
            return errors.DeadlineExceeded("the caller's deadline passed")
        if self._expired:
            return errors.Unavailable(SHUTTING_DOWN, reason="SHUTTING_DOWN")
        return errors.Cancelled("the call was cancelled")


def translate(raised: BaseException) -> errors.TensorwayError:
    """What the caller may know of an error; what is our own fault is logged whole."""
    match raised:
        case errors.TensorwayError():
            return raised
        case grpc.aio.AioRpcError():
            return errors.from_rpc_error(raised)
        case BaseExceptionGroup(exceptions=[first, *_]):
            return translate(first)
        case TimeoutError():
            return errors.DeadlineExceeded(str(raised) or "a step of the call took too long")
    LOG.error("call failed", exc_info=raised)
    return errors.Internal("internal error")


def _written(function: Any) -> Any:
    # gRPC would drop a generator whose caller left while a message was on its way; it
    # would then end whenever it is collected, in another task.
    async def write(request: Any, context: Context) -> None:
        async with aclosing(function(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write


def _drained(function: Any, last: asyncio.Future[None]) -> Any:
    async def drain(requests: Any, context: Context) -> None:
        drained = Drained(requests, last)
        await function(drained, context)
        if drained.cut:
            raise errors.Unavailable(SHUTTING_DOWN, reason="SHUTTING_DOWN")

    return drain


def _code(context: Context) -> grpc.StatusCode:
    given: Any = context.code()
    return next(code for code in grpc.StatusCode if given in (code, code.value[0]))


@dataclass(frozen=True)
class _Rules:
    name: str
    streaming: bool
    lasting: bool
    open: bool


_KINDS: dict[
    tuple[bool, bool], Callable[[Any, Codec | None, Codec | None], grpc.RpcMethodHandler[Any, Any]]
] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
