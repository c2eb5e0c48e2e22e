"""What happens around every call: token, deadline, trace, request id, metrics, errors.

The wrappers are made once, at registration, instead of by interceptors on each call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tensorway import credentials, errors, logs, metrics, telemetry
from tensorway.channels import REQUEST_ID

LOG = logging.getLogger(__name__)

Codec = Callable[[Any], Any] | None
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Service:
    """One gRPC service of the contract, and the object that implements it."""

    descriptor: ServiceDescriptor
    servicer: object
    codecs: Mapping[str, tuple[Codec, Codec]] = field(default_factory=dict)
    """Method -> (request deserializer, response serializer) where messages stay bytes."""
    lasting: frozenset[str] = frozenset()
    """Methods whose calls only end when somebody leaves; shutdown does not wait for them."""
    open: bool = False
    """Whether calls need no token (health checks of an orchestrator have none)."""


class Calls:
    """The calls in flight of one server, and the rules that hold for all of them."""

    def __init__(self, tokens: tuple[bytes, ...], default_timeout: float) -> None:
        self._tokens = tokens
        self._default_timeout = default_timeout
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        self._expired = False

    def handler(self, service: Service) -> grpc.GenericRpcHandler[Any, Any]:
        """The gRPC handler of a service, with these rules around each method."""
        methods = {m.name: self._method(service, m) for m in service.descriptor.methods}
        return grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)

    async def drain(self, grace: float) -> None:
        """Wait for calls in flight; end those left after `grace` s with UNAVAILABLE."""
        finite = [task for task, lasting in self._tasks.items() if not lasting]
        try:
            if finite:
                await asyncio.wait(finite, timeout=grace)
        finally:
            self._expired = True
            for task in self._tasks:
                task.cancel()

    def _method(
        self, service: Service, method: MethodDescriptor
    ) -> grpc.RpcMethodHandler[Any, Any]:
        name = f"{service.descriptor.full_name}/{method.name}"
        streaming = method.client_streaming or method.server_streaming
        rules = _Rules(name, streaming, method.name in service.lasting, service.open)
        function = getattr(service.servicer, method.name)
        wrap = self._generator if inspect.isasyncgenfunction(function) else self._coroutine
        deserialize, serialize = service.codecs.get(
            method.name,
            (
                GetMessageClass(method.input_type).FromString,
                GetMessageClass(method.output_type).SerializeToString,
            ),
        )
        return _KINDS[method.client_streaming, method.server_streaming](
            wrap(function, rules), deserialize, serialize
        )

    def _coroutine(self, function: Any, rules: _Rules) -> Any:
        async def handle(request: Any, context: Context) -> Any:
            async with self._call(rules, context):
                return await function(request, context)

        return handle

    def _generator(self, function: Any, rules: _Rules) -> Any:
        async def handle(request: Any, context: Context) -> AsyncIterator[Any]:
            async with self._call(rules, context):
                async for response in function(request, context):
                    yield response

        return handle

    @asynccontextmanager
    async def _call(self, rules: _Rules, context: Context) -> AsyncIterator[None]:
        started, code = time.perf_counter(), grpc.StatusCode.OK
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = rules.lasting
        headers = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        logs.request_id.set(headers.get(REQUEST_ID, "")[:128] or uuid.uuid4().hex)
        try:
            if self._tokens and not rules.open:
                credentials.check_token(headers.get("authorization", ""), self._tokens)
            with telemetry.server_span(rules.name, headers):
                async with asyncio.timeout(self._timeout(rules, context)):
                    yield
        except BaseException as raised:
            error = self._translate(raised)
            code = errors.GRPC_CODES[type(error)]
            if isinstance(raised, grpc.aio.AbortError) or (
                isinstance(error, errors.Cancelled) and not self._expired
            ):
                raise
            await errors.abort(context, error)
        finally:
            del self._tasks[task]
            metrics.RPCS.labels(rules.name, code.name).inc()
            metrics.RPC_SECONDS.labels(rules.name).observe(time.perf_counter() - started)

    def _timeout(self, rules: _Rules, context: Context) -> float | None:
        given = context.time_remaining() is not None
        return None if given or rules.streaming else self._default_timeout

    def _translate(self, raised: BaseException) -> errors.TensorwayError:
        match raised:
            case errors.TensorwayError():
                return raised
            case grpc.aio.AioRpcError():
                return errors.from_rpc_error(raised)
            case TimeoutError():
                return errors.DeadlineExceeded(f"no answer within {self._default_timeout} s")
            case asyncio.CancelledError() if self._expired:
                return errors.Unavailable("the server is shutting down")
            case asyncio.CancelledError() | GeneratorExit():
                return errors.Cancelled("the call was cancelled")
            case _:
                LOG.error("call failed", exc_info=raised)
                return errors.Internal("internal error")


@dataclass(frozen=True)
class _Rules:
    name: str
    streaming: bool
    lasting: bool
    open: bool


_KINDS: dict[tuple[bool, bool], Callable[[Any, Codec, Codec], grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
