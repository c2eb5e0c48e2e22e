"""HTTP/1.1 on one connection: uvicorn's, with bounds on a request's head, and without upgrades."""

from __future__ import annotations

import asyncio
import struct

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

# Of RFC 9113: types of frames, and an error.
_SETTINGS, _GOAWAY, _HTTP_1_1_REQUIRED = 0x4, 0x7, 0xD
_HTTP2_WORDS = b"this server speaks HTTP/1.1"
_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 10.0
LINGER_SECONDS = 2.0
READ_SECONDS = 60.0


class Protocol(HttpToolsProtocol):
    """One connection.

    A head (or the frame of a chunk) that is too large is answered with 431, and one that
    takes too long is closed. So is a connection whose request was answered early, unless
    the rest of its body comes soon: until then nothing else can be asked on it. One whose
    client does not read is cut: its answer and its permit would be held as long as it likes.
    """

    # Bytes that have brought neither a whole head nor a part of a body.
    _pending = 0
    _in_body = False
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request as long as for a further one."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._read_again()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._read_again()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and bound what is not complete yet."""
        self._unset_keepalive_if_required()
        self._pending += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self.parser.get_method() == b"PRI":
                self._refuse_http2()
            else:
                self._refuse(400, "Invalid HTTP request received.")
            return
        if self._pending > _HEAD_BYTES:
            self._refuse(431, f"The head of a request may have {_HEAD_BYTES} bytes.")
        elif self._pending and self._timer is None:
            self._start_timer(HEAD_SECONDS)

    def on_message_begin(self) -> None:
        """A head begins, perhaps behind the end of another request."""
        self._pending = self._pending or 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request, unless it is going to be read again."""
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._pending, self._in_body = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; after an early answer it buys no more time."""
        self._pending = 0
        if not self.cycle.response_complete:
            self._stop_timer()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._pending, self._in_body = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, if this one was read to its end."""
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._stop_timer()
            self._start_timer(LINGER_SECONDS)

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        """The head once more: the parser reads no body where an upgrade is offered."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("no tunnels here")
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, status: int, words: str) -> None:
        head = "content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        text = f"{head}content-length: {len(words)}\r\n\r\n{words}"
        # Inside another answer, these bytes would be taken for a part of it.
        if not self._answering():
            self.transport.write(STATUS_LINE[status] + text.encode())
        self.transport.close()

    def _refuse_http2(self) -> None:
        # The settings come first, as of any server; then the last frame, for no stream,
        # with the error that tells clients to use HTTP/1.1.
        settings = struct.pack(">IBI", _SETTINGS, 0, 0)
        size = 8 + len(_HTTP2_WORDS)
        goaway = struct.pack(">IBIII", size << 8 | _GOAWAY, 0, 0, 0, _HTTP_1_1_REQUIRED)
        self.transport.write(settings + goaway + _HTTP2_WORDS)
        self.transport.close()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        # A request that is being answered has a deadline of its own.
        if self._answering():
            self._start_timer(HEAD_SECONDS)
        else:
            self.transport.close()
