"""A session that passes everything on to another, for tests that come between in `submit`."""

from collections.abc import Callable

from folkmoot.coordination.zookeeper.session import Session, SessionState


class ForwardingSession:
    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def chroot(self) -> str:
        return self._session.chroot

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def session_timeout(self) -> float:
        return self._session.session_timeout

    def last_acknowledged(self) -> float:
        return self._session.last_acknowledged()

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        self._session.listen(listener)

    def close(self) -> None:
        self._session.close()
