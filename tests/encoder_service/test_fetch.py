"""Images by URL: what is fetched, and what is never dialled."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tensorway.encoding.addresses import is_public
from tensorway.encoding.fetch import Fetcher
from tensorway.encoding.options import ImageOptions
from tensorway.encoding.sources import Sources
from tensorway.errors import InvalidArgument
from tensorway.v1 import handoff_pb2
from tests.encoder_service.pictures import picture

PNG = picture()


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    """An answer of a web server."""
    lines = (f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


class Web:
    """A web server that answers by path, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[asyncio.StreamWriter], object]] = {}
        self.paths: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        """Its name, as the allow-list has it."""
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/image.png") -> str:
        """A URL of it."""
        return f"http://{self.host}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, EOFError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def close(self) -> None:
        """Leave everybody who still waits for an answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        self.paths.append(path)
        answer = self.answers.get(path, http("404 Not Found"))
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(writer)
        await writer.drain()


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    """A web server on this machine."""
    web = Web()
    server = await asyncio.start_server(web.handle, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    web.answers["/image.png"] = http("200 OK", PNG)
    yield web
    server.close()
    await web.close()


@asynccontextmanager
async def fetching(web: Web, *hosts: str, local: bool = True, **limits) -> AsyncIterator[Fetcher]:
    """A fetcher that may dial this machine, unless told otherwise."""
    options = ImageOptions(image_host=(web.host, *hosts), **limits)
    allows = (lambda address: address == "127.0.0.1") if local else is_public
    async with Fetcher(options, allows) as fetcher:
        yield fetcher


async def test_an_allowed_host_is_fetched_from(web: Web) -> None:
    """The body comes back as it is; paths keep their case."""
    web.answers["/A.png"], web.answers["/a.png"] = http("200 OK", b"A"), http("200 OK", b"a")
    async with fetching(web) as fetcher:
        assert await fetcher.fetch(web.url()) == PNG
        assert await fetcher.fetch(web.url("/A.png")) == b"A"
        assert await fetcher.fetch(web.url("/a.png")) == b"a"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1:1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://example.com@169.254.169.254/",
        "http://example.com.evil.test/",
    ],
)
async def test_other_hosts_are_refused_by_name(web: Web, url: str) -> None:
    """Nothing is fetched unless its host was allowed."""
    async with fetching(web, "example.com") as fetcher:
        with pytest.raises(ValueError, match="is not allowed"):
            await fetcher.fetch(url)
    assert web.paths == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "/etc/hostname", "ftp://x/", "gopher://x"])
async def test_other_schemes_are_refused(web: Web, url: str) -> None:
    """Files and other protocols are not images by URL."""
    async with fetching(web) as fetcher:
        with pytest.raises(ValueError, match="expected a data:, http: or https: URL"):
            await fetcher.fetch(url)


async def test_an_allowed_name_with_a_private_address_is_not_dialled(web: Web) -> None:
    """The address that would be dialled decides, not the name."""
    name = f"localhost:{web.port}"
    async with fetching(web, name, local=False) as fetcher:
        for url in (web.url(), f"http://{name}/image.png"):
            with pytest.raises(ValueError, match="the host's address is not public"):
                await fetcher.fetch(url)
    assert web.paths == []


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/", "file:///etc/hostname", "http://169.254.169.254/", "//[::1]/x"],
)
async def test_every_redirect_is_checked(web: Web, target: str) -> None:
    """An allowed host cannot send us elsewhere."""
    web.answers["/r"] = http("302 Found", b"", f"location: {target}")
    async with fetching(web) as fetcher:
        with pytest.raises(ValueError, match=r"is not allowed|expected a data:"):
            await fetcher.fetch(web.url("/r"))
    assert web.paths == ["/r"]


async def test_redirects_to_allowed_hosts_are_followed_a_few_times(web: Web) -> None:
    """A short chain arrives, a circle ends."""
    web.answers["/one"] = http("301 Moved", b"", "location: /two")
    web.answers["/two"] = http("307 Moved", b"", f"location: {web.url()}")
    web.answers["/circle"] = http("302 Found", b"", "location: /circle")
    async with fetching(web) as fetcher:
        assert await fetcher.fetch(web.url("/one")) == PNG
        with pytest.raises(ValueError, match="more than 3 redirects"):
            await fetcher.fetch(web.url("/circle"))
    assert web.paths.count("/circle") == 4


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "204 No Content"])
async def test_other_statuses_are_errors(web: Web, status: str) -> None:
    """The status is told, the URL with its secrets is not."""
    web.answers["/x?token=secret"] = http(status)
    async with fetching(web) as fetcher:
        with pytest.raises(ValueError, match=f"HTTP status {status[:3]}") as raised:
            await fetcher.fetch(web.url("/x?token=secret"))
    assert "secret" not in str(raised.value)


async def test_a_server_that_stalls_is_left(web: Web) -> None:
    """All of the fetch has one time limit."""

    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(60)

    web.answers["/slow"] = stall
    async with fetching(web, image_timeout=0.2) as fetcher:
        with pytest.raises(ValueError, match=r"127.0.0.1: no image within 0.2 s"):
            await fetcher.fetch(web.url("/slow"))


async def test_bytes_are_bounded_while_they_come(web: Web) -> None:
    """An endless body, and one that says that it is too long, are both cut off."""
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
            sent += 4096
            await writer.drain()

    web.answers["/endless"] = endless
    web.answers["/large"] = http("200 OK", bytes(200_000))
    async with fetching(web, max_image_bytes=100_000) as fetcher:
        for path in ("/endless", "/large"):
            with pytest.raises(ValueError, match="at most 100000 bytes, got more"):
                await fetcher.fetch(web.url(path))
    assert sent < 20_000_000


@pytest.mark.parametrize("url", ["http://does-not-exist.invalid/", "http://127.0.0.1:1/"])
async def test_hosts_that_cannot_be_reached_are_the_callers_error(web: Web, url: str) -> None:
    """A name that does not resolve, a port where nobody listens."""
    hosts = ("does-not-exist.invalid", "127.0.0.1:1")
    async with fetching(web, *hosts) as fetcher:
        with pytest.raises(ValueError, match=r"does-not-exist.invalid: |127.0.0.1: "):
            await fetcher.fetch(url)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    """Private, loopback, link-local, metadata, and IPv6 that wraps them."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111"])
def test_addresses_that_are_public(address: str) -> None:
    """The rest of the internet."""
    assert is_public(address)


@asynccontextmanager
async def reading(web: Web, **limits) -> AsyncIterator[Sources]:
    """Sources with the fetcher of :func:`fetching`."""
    async with fetching(web, **limits) as fetcher:
        yield Sources(fetcher._options, fetcher)


def data_url(data: bytes, head: str = "data:image/png;base64") -> str:
    """An image as a URL."""
    return f"{head},{base64.b64encode(data).decode()}"


async def test_images_come_as_bytes_and_by_url(web: Web) -> None:
    """All ways to give an image lead to the same."""
    inputs = [
        handoff_pb2.ImageInput(data=PNG),
        handoff_pb2.ImageInput(url=data_url(PNG)),
        handoff_pb2.ImageInput(url=data_url(PNG, "DATA:;base64")),
        handoff_pb2.ImageInput(url=web.url()),
    ]
    async with reading(web) as sources:
        found = await sources.read(inputs)
    assert {(one.data, one.width, one.height, one.mode) for one in found} == {(PNG, 20, 10, "RGB")}


async def test_urls_that_browsers_escape_are_escaped(web: Web) -> None:
    """Letters that no URL has reach the server as browsers send them, redirects included."""
    web.answers["/caf%C3%A9%20%22x.png?q=%C3%BC"] = http("200 OK", PNG)
    web.answers["/there"] = http("302 Found", b"", "location: /\xfc.png")
    web.answers["/%C3%BC.png"] = http("200 OK", PNG)
    async with fetching(web) as fetcher:
        assert await fetcher.fetch(web.url('/café "x.png?q=ü')) == PNG
        assert await fetcher.fetch(f" {web.url('/there')}\n") == PNG


async def test_a_long_url_is_refused(web: Web) -> None:
    """Nobody spends time on megabytes that are no URL."""
    async with fetching(web) as fetcher:
        with pytest.raises(ValueError, match="at most 16384 characters, got"):
            await fetcher.fetch(web.url("/" + "é" * 100_000))


async def test_ipv6_hosts_are_allowed_with_or_without_brackets() -> None:
    """The flag may have what a URL has."""
    for host in ("[::1]:1", "::1:1"):
        async with Fetcher(ImageOptions(image_host=(host,))) as fetcher:
            with pytest.raises(ValueError, match="address is not public"):
                await fetcher.fetch("http://[::1]:1/")


async def test_names_that_do_not_resolve_for_a_while_keep_nobody_waiting(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image in the request itself needs no resolver, and none of its threads."""
    release, asked = threading.Event(), []

    def silent(*host: object, **_: object) -> list[Any]:
        asked.append(host)
        release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    async with reading(web, image_timeout=60.0) as sources:
        slow = [
            asyncio.create_task(sources.read([handoff_pb2.ImageInput(url=web.url())]))
            for _ in range(80)
        ]
        while len(asked) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (found,) = await sources.read([handoff_pb2.ImageInput(url=data_url(PNG))])
        assert found.width == 20
        assert not any(task.done() for task in slow)
        release.set()
        results = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(result) for result in results} == {InvalidArgument}


FORGIVEN = {
    "lines": lambda text: "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76)),
    "escapes": lambda text: text.replace("=", "%3D").replace("+", "%2b").replace("/", "%2F"),
    "no padding": lambda text: text.rstrip("="),
}


@pytest.mark.parametrize("written", FORGIVEN.values(), ids=FORGIVEN)
@pytest.mark.parametrize("head", ["data:image/png;charset=utf-8;base64", "data:image/png; BASE64"])
async def test_data_urls_are_read_as_browsers_read_them(web: Web, written, head: str) -> None:
    """What comes out of `base64` or of a form is an image too."""
    url = f"{head},{written(base64.b64encode(PNG + b'x').decode())}"
    async with reading(web) as sources:
        (found,) = await sources.read([handoff_pb2.ImageInput(url=url)])
    assert found.data == PNG + b"x"


WRONG = {
    "neither": (handoff_pb2.ImageInput(), "expected data or a url, got neither"),
    "empty": (handoff_pb2.ImageInput(data=b""), "got 0 other bytes"),
    "no base64": (handoff_pb2.ImageInput(url="data:image/png,abc"), "with ;base64, got one"),
    "no comma": (handoff_pb2.ImageInput(url="data:image/png;base64"), "with ;base64, got one"),
    "bad base64": (handoff_pb2.ImageInput(url="data:;base64,!!!"), "expected base64"),
    "html": (handoff_pb2.ImageInput(data=b"<html></html>"), "expected an image"),
    "too many bytes": (handoff_pb2.ImageInput(data=bytes(50_001)), "at most 50000 bytes"),
    "too many pixels": (handoff_pb2.ImageInput(data=picture(size=(200, 100))), "pixels, got 20000"),
    "path": (handoff_pb2.ImageInput(url="/etc/hostname"), "expected a data:, http: or https:"),
    "long id": (handoff_pb2.ImageInput(data=PNG, id="x" * 129), "id: expected at most 128"),
    "with its id": (handoff_pb2.ImageInput(data=b"x", id="cat"), "'cat': expected an image"),
}


@pytest.mark.parametrize(("wrong", "match"), WRONG.values(), ids=WRONG)
async def test_a_bad_image_is_named_by_its_index(web: Web, wrong, match: str) -> None:
    """The second of two images is wrong, and the error says so."""
    inputs = [handoff_pb2.ImageInput(data=PNG), wrong]
    async with reading(web, max_image_bytes=50_000, max_image_pixels=10_000) as sources:
        with pytest.raises(InvalidArgument, match=match) as raised:
            await sources.read(inputs)
    assert raised.value.field == "images[1]"


async def test_images_are_counted_before_anything_is_fetched(web: Web) -> None:
    """200 images are refused, and none of them was asked for."""
    inputs = [handoff_pb2.ImageInput(url=web.url())] * 200
    async with reading(web) as sources:
        with pytest.raises(InvalidArgument, match="images: expected at most 16, got 200"):
            sources.check(inputs)
    assert web.paths == []
