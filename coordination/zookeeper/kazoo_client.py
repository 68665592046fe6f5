"""kazoo's client without what it would do on its own: worker threads, retries, a second session."""

from __future__ import annotations  # kazoo's generic classes are so in the stubs only

import logging
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.exceptions import SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback
from kazoo.retry import KazooRetry

MAX_QUEUED = 128
"""So many requests may be in kazoo's hands at a time: see `_Waker`."""

LEAST_PATIENCE = 1.0  # seconds for a loaded server to answer the first message
RECONNECT_DELAY = 0.5  # seconds between attempts, at most

_Descriptor = int | socket.socket

log = logging.getLogger(__name__)


def create(
    servers: str,
    session_timeout: float,
    may_connect: Callable[[], bool],
    connected: Callable[[float], None],
) -> KazooClient:
    """A client that is not started.

    `may_connect` is asked before each attempt to connect, `connected` is told the session timeout
    negotiated; both on the connection thread.
    """
    patience = max(LEAST_PATIENCE, session_timeout / 3)
    client = KazooClient(
        hosts=servers,
        timeout=session_timeout,
        handler=_OneThread(patience),
        # For connecting only: what goes through `*_async` never sees a retry.
        connection_retry=KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_delay=RECONNECT_DELAY, ignore_expire=False
        ),
        logger=_quiet_logger(),
    )
    _intercept_connecting(client, patience, may_connect, connected)
    return client


class _OneThread(SequentialThreadingHandler):
    """Runs results and watches on the connection thread, at once and in order.

    Never `running`, it has no worker threads, and kazoo then calls the callbacks of results itself.
    `patience` is how long one attempt to connect may take.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Callback) -> None:
        try:
            callback.func(*callback.args)
        except Exception:  # it must not take the connection thread with it
            log.exception("a ring failed")

    def select(
        self,
        rlist: Sequence[_Descriptor],
        wlist: Sequence[_Descriptor],
        xlist: Sequence[_Descriptor],
        timeout: float | None = None,
    ) -> tuple[list[_Descriptor], list[_Descriptor], list[_Descriptor]]:
        """kazoo makes an epoll object for each call, and it calls three times for each answer."""
        poll = select.poll()
        for each in rlist:
            poll.register(each, select.POLLIN)
        for each in wlist:
            poll.register(each, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        readable, writable = (
            [each for each in some if _number(each) in ready] for some in (rlist, wlist)
        )
        return readable, writable, []

    def create_connection(self, *args: Any, **options: Any) -> socket.socket:
        options["timeout"] = min(options["timeout"], self._patience)
        return super().create_connection(*args, **options)

    def create_socket_pair(self) -> tuple[socket.socket, _Waker]:
        """kazoo's own pair would block the thread that submits, and us with it, when it is full."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        return reader, _Waker(writer)


def _number(each: _Descriptor) -> int:
    return each if isinstance(each, int) else each.fileno()


class _Waker:
    """The end of a socket pair into which kazoo writes one byte for each request it has queued.

    A full pair holds more bytes than there can be requests (MAX_QUEUED), so that a byte may be
    dropped then: kazoo reads one per request, and enough are there.
    """

    def __init__(self, writer: socket.socket) -> None:
        self._writer = writer

    def send(self, data: bytes) -> int:
        with suppress(BlockingIOError):
            self._writer.send(data)
        return len(data)

    def close(self) -> None:
        self._writer.close()


def _intercept_connecting(
    client: KazooClient,
    patience: float,
    may_connect: Callable[[], bool],
    connected: Callable[[float], None],
) -> None:
    """Ask before each attempt to connect, keep it short, and tell the session timeout negotiated.

    kazoo waits for a server's first answer as long as the session may live. A ZooKeeper that is just
    starting can swallow the first message and keep the connection open: the session would die of
    waiting. For none of the three has kazoo a public way; this is the one place that reaches into it.
    """
    connection = cast(Any, client)._connection
    connect: Callable[[str, str, int], tuple[float, float]] = connection._connect
    invoke: Callable[..., Any] = connection._invoke

    def connect_if_allowed(host: str, address: str, port: int) -> tuple[float, float]:
        if not may_connect():
            raise SessionExpiredError("the session is over")
        read_timeout_ms, connect_timeout_ms = connect(host, address, port)
        connected(read_timeout_ms * 1.5 / 1000)  # kazoo reads for two thirds of it
        return read_timeout_ms, connect_timeout_ms

    def invoke_impatiently(timeout: float, *args: Any, **options: Any) -> Any:
        return invoke(min(timeout, patience), *args, **options)

    connection._connect = connect_if_allowed
    connection._invoke = invoke_impatiently


def _quiet_logger() -> logging.Logger:
    """kazoo tells of every attempt to connect, as a warning. To our users that is detail.

    And it tells the session's password, which nobody is to know.
    """
    logger = logging.getLogger(f"{__name__}.kazoo")

    def as_detail(record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logger.isEnabledFor(logging.DEBUG) and "passwd" not in record.getMessage()

    if not logger.filters:
        logger.addFilter(as_detail)
    return logger
