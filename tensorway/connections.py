"""The sockets of a gRPC server that stops, which gRPC itself does not let go one by one.

From the moment a server tells its clients to go, gRPC resets what they send until they
heard it: callers see CANCELLED, which nobody tries elsewhere. A connection that ends is
UNAVAILABLE, and a port that nobody listens on sends its callers to the next address. So who
stops closes the port and ends idle connections first. Where the system does not list a
process's descriptors, nothing happens here.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/dev/fd")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def refuse(port: int) -> None:
    """Have the system refuse new connections to a port of ours."""
    for number, one in _sockets(port):
        if _listens(one):
            # Closed under gRPC, which goes on with a socket that nobody can reach; it
            # would log an error if this one were only shut down.
            with socket.socket(one.family) as unreachable:
                os.dup2(unreachable.fileno(), number, inheritable=False)


def end(port: int, busy: Collection[int] = ()) -> None:
    """End the connections to a port of ours, but not those from the busy ports of clients.

    What was written arrives before the end.
    """
    for _, one in _sockets(port):
        with suppress(OSError):
            if not _listens(one) and one.getpeername()[1] not in busy:
                one.shutdown(socket.SHUT_RDWR)


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """The descriptors of a port's sockets, each with a socket of its own to work with."""
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        # gRPC's threads close descriptors meanwhile; peers leave.
        with suppress(OSError), _opened(os.dup(int(entry.name))) as one:
            if one.family in _FAMILIES and one.getsockname()[1] == port:
                yield int(entry.name), one


def _opened(descriptor: int) -> socket.socket:
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return socket.socket(fileno=descriptor)
    os.close(descriptor)
    raise OSError("not a socket")
