"""Images by http(s) URL: allowed hosts only, public addresses only, bounded in every way.

The check is made on the address that is dialled, not on a name that may resolve to
something else a moment later, and again for every redirect.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import httpcore

from tensorway.encoding.addresses import is_public
from tensorway.encoding.options import ImageOptions
from tensorway.threads import Threads

Allows = Callable[[str], bool]

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200
_CONNECTIONS = 32
_RESOLVERS = 4
_MAX_URL = 16_384
# Of ASCII only what no URL has is escaped, as browsers do it.
_URL = "!#$%&'()*+,/:;=?@[]~"


class Fetcher:
    """Fetches images; an async context manager that owns the connections."""

    def __init__(self, options: ImageOptions, allows: Allows = is_public) -> None:
        self._options = options
        self._hosts = frozenset(_plain(host) for host in options.image_host)
        self._network = _Guarded(allows)
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=self._network, max_connections=_CONNECTIONS
        )

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.__aexit__(kind, error, traceback)
        self._network.close()

    async def fetch(self, url: str) -> bytes:
        """The body behind a URL; raises ValueError, without the URL's path or query."""
        if len(url) > _MAX_URL:
            raise ValueError(f"expected a URL of at most {_MAX_URL} characters, got {len(url)}")
        host = ""
        try:
            async with asyncio.timeout(self._options.image_timeout):
                for _ in range(self._options.image_redirects + 1):
                    # Before the check, so that what is checked is what is asked for.
                    url = quote(url.strip(), safe=_URL)
                    host = self._check(urlsplit(url))
                    body, location = await self._get(url)
                    if location is None:
                        return body
                    url = urljoin(url, location)
        except TimeoutError:
            seconds = self._options.image_timeout
            raise ValueError(f"{host}: no image within {seconds:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise ValueError(f"{host}: {error or type(error).__name__}") from None
        raise ValueError(f"{host}: more than {self._options.image_redirects} redirects")

    def _check(self, url: SplitResult) -> str:
        host = (url.hostname or "").lower()
        if url.scheme not in _PORTS:
            raise ValueError(f"expected a data:, http: or https: URL, got {url.scheme or 'none'}")
        name = host if url.port in (None, _PORTS[url.scheme]) else f"{host}:{url.port}"
        if name not in self._hosts:
            raise ValueError(f"host {name!r} is not allowed (--image-host)")
        return host

    async def _get(self, url: str) -> tuple[bytes, str | None]:
        headers = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "tensorway"}
        async with self._pool.stream("GET", url, headers=[*headers.items()]) as response:
            found = {name.lower(): value for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in found:
                return b"", quote(found[b"location"], safe=_URL)
            if response.status != _OK:
                raise ValueError(f"{urlsplit(url).hostname}: HTTP status {response.status}")
            self._check_size(int(found.get(b"content-length") or 0))
            body = bytearray()
            async for part in response.aiter_stream():
                body += part
                self._check_size(len(body))
            return bytes(body), None

    def _check_size(self, size: int) -> None:
        if size > self._options.max_image_bytes:
            raise ValueError(f"expected at most {self._options.max_image_bytes} bytes, got more")


def _plain(host: str) -> str:
    """A host, or host:port, without the brackets of IPv6."""
    return host.lower().replace("[", "").replace("]", "")


class _Guarded(httpcore.AsyncNetworkBackend):
    """Resolves names itself, and dials only what is allowed."""

    def __init__(self, allows: Allows) -> None:
        self._allows = allows
        self._inner = httpcore.AnyIOBackend()
        # Of its own: names that do not resolve for a while keep nobody else waiting.
        self._resolvers = Threads(_RESOLVERS, "resolve")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to an address of the host, all of which must be allowed."""
        failure: Exception = httpcore.ConnectError("the host name does not resolve")
        for address in await self._resolve(host, port):
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore.ConnectError as error:
                failure = error
        raise failure

    def close(self) -> None:
        """End the threads that resolve names."""
        self._resolvers.close()

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolvers.run(
                lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError):
            return []
        addresses = [str(info[4][0]) for info in found]
        if not all(self._allows(address) for address in addresses):
            raise httpcore.ConnectError("the host's address is not public")
        return addresses
