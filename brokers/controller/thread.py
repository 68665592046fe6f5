"""The thread of a controller, or of a candidate."""

import logging
import time
from threading import Thread
from typing import Final
from uuid import uuid4

from folkmoot.brokers.controller.controller import Controller
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import SessionLost
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import FolkmootError

logger = logging.getLogger(__name__)

PAUSE: Final = 0.5
"""Seconds between two sessions, so that a lasting fault is met slowly."""
REMIND_AFTER: Final = 10.0


class ControllerThread:
    """Stands for election while it runs, in one ZooKeeper session after another.

    It shares nothing with the rest of its process: no request waits for it, and it waits for none. Any
    error ends the session, so that another candidate is elected, and this one starts anew as a candidate.
    """

    def __init__(self, connect: Connect, broker: int, session_timeout: float) -> None:
        """`broker`: the one in whose process it runs, or controllers.ALONE."""
        self._connect = connect
        self._broker = broker
        self._session_timeout = session_timeout
        self._wakeup = Wakeup()
        self._stopping = False
        self._session: Session | None = None
        self._controller: Controller | None = None
        self._thread = Thread(target=self._run, name="controller", daemon=True)

    @property
    def is_elected(self) -> bool:
        """It is the controller, as far as it knows."""
        return (controller := self._controller) is not None and controller.is_elected

    @property
    def is_connected(self) -> bool:
        """ZooKeeper answers it. From any thread."""
        return (found := self._session) is not None and found.state is SessionState.CONNECTED

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the session, so that another is elected at once, and wait for the thread's end."""
        self._stopping = True
        self._wakeup.wake()
        if self._session is not None:
            self._session.close()
        while self._thread.is_alive():
            self._thread.join(REMIND_AFTER)
            if self._thread.is_alive():
                logger.warning("the controller cannot end: it waits for an answer of ZooKeeper")
        self._wakeup.close()

    def _run(self) -> None:
        last_error = ""
        while not self._stopping:
            try:
                self._session = self._connect(self._session_timeout)
                try:
                    self._work(self._session)
                finally:
                    self._session.close()
            except FolkmootError as error:
                if not self._stopping:
                    level = logging.DEBUG if str(error) == last_error else logging.WARNING
                    last_error = str(error)
                    logger.log(level, "this controller starts again as a candidate: %s", error)
            except Exception:
                logger.exception("this controller starts again as a candidate")
            self._controller = None
            if not self._stopping:
                self._wakeup.wait(PAUSE)

    def _work(self, session: Session) -> None:
        controller = self._controller = Controller(self._broker, uuid4().hex, self._wakeup.wake)
        session.listen(lambda _: self._wakeup.wake())
        while not self._stopping:
            if session.state is SessionState.LOST:
                raise SessionLost("the session is over")
            now = time.monotonic()
            recipes = controller.step(now)
            if recipes:
                execute_all(session, recipes)
            else:
                due = controller.ask_again
                self._wakeup.wait(None if due is None else max(0.0, due - now))
