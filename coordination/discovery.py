"""Reads from ZooKeeper, above all the brokers' addresses, for threads that must not wait for long."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Lock, Thread
from typing import Annotated, TypeVar

from msgspec import Meta

from folkmoot.coordination.brokers import addresses
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import (
    LONGEST_SESSION,
    SHORTEST_SESSION,
    Connect,
    Session,
    SessionState,
)
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import Seconds, check_options

_T = TypeVar("_T")

ANSWER_WAIT = 5.0
LOOK_WAIT = 0.1
"""Seconds that a look for brokers waits for an answer, which normally comes sooner."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Options of every client; durations in seconds."""

    zookeeper: str | Connect = ""
    """ZooKeeper's connect string with its chroot, or something that opens a session."""
    client_id: str = "client"
    """Shown at brokers; the names of members and threads begin with it."""
    listener: str = "client"
    """Which of the brokers' listeners to connect to."""
    session_timeout: Annotated[Seconds, Meta(ge=SHORTEST_SESSION, le=LONGEST_SESSION)] = 6.0
    """After this long without a heartbeat ZooKeeper ends the client's session; a member's partitions go to
    others then."""
    request_timeout: Annotated[Seconds, Meta(gt=0)] = 30.0
    """After this long without an answer a request to a broker is taken for lost, and sent again."""

    def __post_init__(self) -> None:
        check_options(self)
        check_name("client id", self.client_id)


class ZooKeeperDiscovery:
    """Finds the addresses of live brokers, and answers other questions. Any thread may ask.

    The session stays open between calls: clients ask when all known brokers have failed, and should not have
    to find ZooKeeper first then. A lost session is replaced by what `connect` returns; that may be a member's
    own session, or None if it has none at the moment.

    Sessions are opened, and brokers looked up, on other threads. `close` may be called from any thread: a
    session that is opened later is closed at once.
    """

    def __init__(
        self,
        connect: Callable[[float], Session | None],
        session_timeout: float,
        listener: str,
        look_wait: float | None = None,
    ) -> None:
        """A look for brokers waits for `look_wait` seconds (None: LOOK_WAIT); an event loop passes 0."""
        self._connect = connect
        self._look_wait = look_wait
        self._session_timeout = session_timeout
        self._listener = listener
        self._lock = Lock()
        self._session: Session | None = None
        self._opening: Future[Session | None] | None = None
        self._looking: Future[list[str]] | None = None

    def open(self, timeout: float | None = None) -> None:
        """Raises ZooKeeperUnreachable, at the latest after `timeout` seconds."""
        try:
            self._wait_for_session(timeout)
        except TimeoutError:
            raise ZooKeeperUnreachable(
                f"no ZooKeeper server answers within {timeout:g} s"
            ) from None

    def _wait_for_session(self, timeout: float | None) -> Session | None:
        """The session. Raises TimeoutError while it is being opened, and what `connect` raises."""
        with self._lock:
            if self._session is not None and self._session.state is not SessionState.LOST:
                return self._session
            if self._opening is None:
                self._opening = _start_thread(partial(self._connect, self._session_timeout))
            opening = self._opening
        try:
            done, _ = wait((opening,), timeout)
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if not done:
            raise TimeoutError
        with self._lock:
            if self._opening is opening:  # else it was closed meanwhile
                self._opening = None
                self._session = opening.result()
        return opening.result()

    def __call__(self) -> list[str] | None:
        """The addresses; None while they are looked up: call again. Raises ZooKeeperUnreachable."""
        patience = LOOK_WAIT if self._look_wait is None else self._look_wait
        until = time.monotonic() + patience
        try:
            looking = self._looking  # read once: another thread may ask, too
            if looking is None:
                session = _require_connected(self._wait_for_session(patience))
                question = addresses(self._listener)
                looking = self._looking = _start_thread(
                    partial(execute, session, question, ANSWER_WAIT)
                )
            found = looking.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return None
        except BaseException:
            self._looking = None
            raise
        self._looking = None
        return found

    def ask(self, question: Recipe[_T], timeout: float | None = None) -> _T:
        """Carry out a recipe → its result. Raises ZooKeeperUnreachable, after `timeout` seconds, and at once
        while no server answers."""
        until = inf if timeout is None else time.monotonic() + timeout
        self.open(timeout)
        left = max(0.0, until - time.monotonic())
        return execute(_require_connected(self._session), question, min(ANSWER_WAIT, left))

    def close(self) -> None:
        with self._lock:
            opening, self._opening = self._opening, None
            session = self._session
        if opening is not None:
            opening.add_done_callback(_close_session)
        if session is not None:
            session.close()


def _start_thread(work: Callable[[], _T]) -> "Future[_T]":
    """Do this on another thread."""
    future = Future[_T]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="folkmoot-discovery", daemon=True).start()
    return future


def _require_connected(session: Session | None) -> Session:
    """Raises ZooKeeperUnreachable if no server answers the session at the moment."""
    if session is None or session.state is not SessionState.CONNECTED:
        raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
    return session


def _close_session(opening: "Future[Session | None]") -> None:
    if opening.exception() is None and (session := opening.result()) is not None:
        session.close()
