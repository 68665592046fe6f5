"""TCP connections that ZeroMQ owns, by their descriptors.

ZeroMQ may close a descriptor at any time, and the system may give its number to another file. Callers
read the socket's monitor first, and must cope with numbers of another connection.
"""

import fcntl
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_COUNTS: Final = struct.Struct("=QQ")
_COUNTS_AT: Final = 120


def byte_counts(descriptor: int) -> tuple[int, int]:
    """Bytes sent that the peer's machine has acknowledged, and bytes received from it.

    Both are 0 where the system does not count them. Raises OSError if it is no TCP connection.
    """
    if _TCP_INFO is None:
        return 0, 0
    with borrowed(descriptor) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _COUNTS_AT + _COUNTS.size)
    if len(info) < _COUNTS_AT + _COUNTS.size:
        return 0, 0
    acknowledged, received = _COUNTS.unpack_from(info, _COUNTS_AT)
    return acknowledged, received


def unread_bytes(descriptor: int) -> int:
    """Bytes that the kernel has received and ZeroMQ has not taken. Raises OSError."""
    (count,) = struct.unpack("=i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return int(count)


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A view of the connection; the descriptor stays open."""
    view = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        yield view
    finally:
        view.detach()
