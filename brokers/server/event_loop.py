"""The broker's one loop: it owns the socket, the logs, the parked requests and their deadlines."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Final

from folkmoot.brokers.server.context import Answer, Asked, Context, Later
from folkmoot.brokers.server.fetching import wake
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.purgatory import Parked
from folkmoot.brokers.server.request_handlers import handle
from folkmoot.brokers.server.scheduler import Now, Upkeep
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.server import Message, ServerSocket
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BrokerStopping,
    FolkmootError,
    InvalidRequest,
    Overloaded,
    UnknownServerError,
)

logger = logging.getLogger(__name__)

MESSAGES_PER_TURN: Final = 64
LAST_MESSAGES: Final = 1_000
NO_CORRELATION: Final = -1
STOP_LINGER: Final = 0.5
STOP_TIMEOUT: Final = 10.0


class Reactor:
    """One thread, no locks. All that the broker keeps is touched here and nowhere else.

    Turn: wait for messages, the wakeup or the next deadline; empty the inbox; handle a bounded number
    of messages; answer those parked requests that are due; do one chore that is due. Appends of one
    turn wake a parked fetch once.

    Other threads hand in work with `post` and never wait. Requests are taken one at a time, to their
    end, so that a peer's requests take effect in the order sent.

    Whatever a peer sends costs at most that peer an error: a typed one for what is wrong with the
    request, UnknownServerError, with the stack in the log, for a fault of ours. What cannot be read
    at all is answered under correlation id -1. Only a failure of the loop itself ends it, and is
    reported to `failed`.

    Stopping: requests that wait, and those that still arrive, are answered with BrokerStopping.
    """

    def __init__(
        self,
        socket: ServerSocket,
        context: Context,
        failed: Callable[[Exception], None],
        upkeep: Upkeep | None = None,
    ) -> None:
        self._socket = socket
        self._context = context
        self._failed = failed
        self._upkeep = upkeep or Upkeep()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._running = True
        self._owed: dict[Later, Asked] = {}
        self._thread = Thread(target=self._run, name="reactor", daemon=True)

    def start(self) -> None:
        self._socket.watch(self._wakeup.fileno())
        self._thread.start()

    def post(self, work: Callable[[], None]) -> None:
        """Have `work` done on the reactor's thread. From any thread; does not wait."""
        self._inbox.append(work)
        self._wakeup.wake()

    def show(self, view: ClusterView, deleted: frozenset[str]) -> None:
        """Take over a new view of the cluster, and drop the logs of deleted topics. Any thread."""
        self.post(lambda: self._context.show(view, deleted))

    def stop(self) -> None:
        """Answer all who wait, then end; the socket is closed. Any thread but the reactor's."""
        if self._thread.is_alive():
            self.post(self._end)
            self._thread.join(STOP_TIMEOUT)
        if not self._thread.is_alive():
            self._wakeup.close()

    def _end(self) -> None:
        self._running = False

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
            self._say_goodbye()
        except Exception as error:
            logger.exception("the reactor failed")
            self._failed(error)
        finally:
            self._socket.close(STOP_LINGER)

    def _turn(self) -> None:
        if self._socket.wait(self._time_left()):
            self._wakeup.clear()
        while self._inbox:
            self._inbox.popleft()()
        if not self._running:
            return
        messages = self._socket.receive(MESSAGES_PER_TURN)
        now = Now(time.monotonic(), time.time_ns() // 1_000_000)
        for message in messages:
            self._take(message, now)
        for parked in self._context.parked.take_woken(now.monotonic):
            self._wake(parked, now)
        self._upkeep.run(now)

    def _time_left(self) -> float | None:
        sources = (self._context.parked, self._upkeep)
        deadlines = [at for each in sources if (at := each.next_deadline()) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _take(self, message: Message, now: Now) -> None:
        asked = Asked(message.peer, NO_CORRELATION, None)
        try:
            envelope = wire.decode_envelope(_first_frame(message))
            asked = Asked(message.peer, envelope.correlation_id, None)
            asked = Asked(message.peer, envelope.correlation_id, wire.decode_body(envelope))
            outcome = handle(asked, message.frames[1:], now, self._context)
            if isinstance(outcome, Later):
                self._owed[outcome] = asked
                outcome.reply = partial(self._answer_late, outcome)
            elif outcome is not None:
                self._answer(asked, outcome)
        except Exception as error:
            self._refuse(asked, error)

    def _wake(self, parked: Parked, now: Now) -> None:
        asked: Asked = parked.request
        try:
            self._answer(asked, wake(parked, now, self._context))
        except Exception as error:
            self._refuse(asked, error)

    def _answer_late(self, later: Later, answer: Answer) -> None:
        asked = self._owed.pop(later)
        try:
            self._answer(asked, answer)
        except Exception as error:
            self._refuse(asked, error)

    def _answer(self, asked: Asked, answer: Answer) -> None:
        envelope = wire.encode_response(asked.correlation_id, answer.response)
        if not self._socket.send(asked.peer, (envelope, *answer.payloads)):
            raise Overloaded("too many bytes are on their way to this client: read them first")

    def _refuse(self, asked: Asked, error: Exception) -> None:
        if not isinstance(error, FolkmootError):
            logger.error("a request could not be answered", exc_info=error)
            error = UnknownServerError("the broker failed at this request: its log says how")
        self._socket.send(asked.peer, (wire.encode_error(asked.correlation_id, error),))

    def _say_goodbye(self) -> None:
        stopping = BrokerStopping("the broker is stopping: ask again elsewhere or later")
        for asked in (
            *(each.request for each in self._context.parked.take_all()),
            *self._owed.values(),
        ):
            self._refuse(asked, stopping)
        for message in self._socket.receive(LAST_MESSAGES):
            with suppress(InvalidRequest):
                envelope = wire.decode_envelope(_first_frame(message))
                self._refuse(Asked(message.peer, envelope.correlation_id, None), stopping)


def _first_frame(message: Message) -> memoryview:
    if not message.frames:
        raise InvalidRequest("a message without frames is not a request")
    return message.frames[0]
