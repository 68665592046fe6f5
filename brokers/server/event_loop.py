"""The broker's one loop: it owns the socket, the logs, the requests that wait and their deadlines."""

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from threading import Thread
from typing import Any, Final, TypeVar

from folkmoot.brokers.jobs.jobs import Job, Lane, Now, Task, call_guarded
from folkmoot.brokers.server.metadata_cache import ClusterChange
from folkmoot.brokers.server.purgatory import DelayedResponse, Request, Response
from folkmoot.brokers.server.request_handlers import JobGenerator, Outcome, RequestHandlers
from folkmoot.brokers.server.request_table import handle
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.server import Message, ServerSocket
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BrokerStopping,
    FolkmootError,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    UnknownServerError,
)
from folkmoot.protocol.messages import API_OF, Api

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

STEPS_PER_TURN: Final = 64
LAST_MESSAGES: Final = 1_000
NO_CORRELATION: Final = -1
STOP_LINGER: Final = 0.5
REMIND_AFTER: Final = 10.0
TRY_TASK_AGAIN: Final = 10.0

STEP_TIME: Final = 0.005
"""Seconds after which a request of many entries gives way."""
TURN_TIME: Final = 0.02
"""Seconds that requests of many entries get in a turn together, beyond one step of each message."""
SLOW_STEP: Final = 0.02
WARN_OF_STEP: Final = 0.5
"""Seconds of a step from which on the slow ones are a warning."""
REPORT_SLOW_STEPS: Final = 60.0
LOOK_AT_CONNECTIONS: Final = 0.1


class EventLoop:
    """One thread, no locks. All that the broker keeps is touched here and nowhere else.

    A turn waits for messages, a wake-up or the next deadline. Then it handles, each in a bounded number,
    posted callbacks, leaders' answers to the followers here, messages, unfinished requests of many entries
    (for TURN_TIME together), completed fetches, and one due task. Appends of one turn complete a delayed
    fetch once.

    Each of these is a step. No step waits for a disk or handles more than a bounded number of items.
    Steps above SLOW_STEP seconds are counted (`slow_steps`, `longest_step`) and logged.

    Other threads hand in work with `post` and never wait. A peer's requests take effect in the order
    sent: while one of them is unfinished, later ones are held back.

    An error costs at most its peer an answer: a typed error for a wrong request, UnknownServerError for
    a fault of the broker's own, with the stack in the log. Unreadable requests are answered under
    correlation id -1. A fault in a callback or a task is logged, and the task tried again. A fault where
    a partition takes a leader's answer puts that one out of use. Only a failure of the loop itself ends
    it, and is reported to `failed`.

    Stopping: requests that wait, and those that still arrive, are answered with BrokerStopping.
    """

    def __init__(
        self,
        socket: ServerSocket,
        handlers: RequestHandlers,
        failed: Callable[[Exception], None],
        tasks: Iterable[Task] = (),
    ) -> None:
        """The followers' fetches have their sockets in the poller of `socket`."""
        self._socket = socket
        self.handlers = handlers
        self._purgatory = handlers.purgatory
        self._failed = failed
        self._partitions = handlers.partitions
        self._fetcher = handlers.partitions.fetcher
        self._inbox: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._wakeup_descriptor = self._wakeup.fileno()
        self._running = True
        self._unfinished: deque[tuple[Request, JobGenerator, Exception | None]] = deque()
        self._held: dict[bytes, tuple[Request, deque[Message]]] = {}
        """The unfinished request of each peer, and the messages that came after it."""
        self._owed: dict[DelayedResponse, Request] = {}
        all_tasks = [*tasks, self._report_slow_steps, self._look_at_connections]
        self._tasks = [(-inf, number, task) for number, task in enumerate(all_tasks)]
        self._step_began = time.monotonic()
        self._steps_until = inf
        self.slow_steps = 0
        self.longest_step = 0.0
        self.busy = 0.0
        """Seconds that all steps have taken together."""
        self.requests = handlers.counters
        self._slow_since: list[tuple[float, str]] = []
        self._thread = Thread(target=self._run, name="event-loop", daemon=True)

    def start(self) -> None:
        self._socket.watch(self._wakeup_descriptor)
        self._thread.start()

    def post(self, work: Callable[[], None]) -> None:
        """Have `work` done on the event loop. From any thread; does not wait."""
        self._inbox.append(work)
        self._wakeup.wake()

    def show(self, change: ClusterChange) -> None:
        """Take over a change of the cluster. Any thread."""
        self.post(partial(self.handlers.updates.show, change, self.post))

    @property
    def is_started(self) -> bool:
        """True once it was started. From any thread."""
        return self._thread.ident is not None

    def call(self, work: Callable[[], _T], timeout: float) -> _T:
        """Do `work` on the event loop and return its result. From any other thread.

        Raises what `work` raises; RequestTimeout if the loop stands still for `timeout` seconds, or has
        ended.
        """
        future: Future[_T] = Future()

        def carry_out() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self.post(carry_out)
        try:
            return future.result(timeout)
        except TimeoutError:
            raise RequestTimeout(f"the event loop has not answered within {timeout:g} s") from None

    def end(self) -> None:
        """Answer only that the broker stops, from now on. The event loop's thread."""
        self._running = False

    def stop(self) -> None:
        """Answer all requests that wait, then end; returns once the thread has ended and the socket is
        closed."""
        if self.is_started:
            self.post(self.end)
            while self._thread.is_alive():
                self._thread.join(REMIND_AFTER)
                if self._thread.is_alive():
                    logger.warning("stopping waits for a step of the event loop that has not ended")
        self._wakeup.close()

    def _run(self) -> None:
        try:
            while self._running:
                self._run_once()
            self._refuse_all()
        except Exception as error:
            logger.exception("the event loop failed")
            self._failed(error)
        finally:
            self._fetcher.close()
            self._socket.close(STOP_LINGER)

    def _run_once(self) -> None:
        events = self._socket.wait(self._time_left())
        if self._wakeup_descriptor in events:
            self._wakeup.clear()
        self._step_began = time.monotonic()
        for _ in range(min(len(self._inbox), STEPS_PER_TURN)):
            work = self._inbox.popleft()
            call_guarded("callback on the event loop", work)
            self._step_ended("callback", work)
        if not self._running:
            return
        messages = self._socket.receive(STEPS_PER_TURN)
        self._step_ended("receiving")
        now = Now(time.monotonic(), time.time_ns() // 1_000_000)
        if self._fetcher.follows:
            self._partitions.replicate(events, now)
            self._step_ended("followers' fetches")
        self._steps_until = time.monotonic() + TURN_TIME
        for message in messages:
            self._handle_message(message, now)
        self._steps_until = time.monotonic() + TURN_TIME
        for _ in range(len(self._unfinished)):
            self._resume(now)
            if self._step_began >= self._steps_until:
                break  # the others follow in the next turns, in this order
        self._partitions.shared.run_timers(now.monotonic)
        for delayed in self._purgatory.take_completed(now.monotonic, STEPS_PER_TURN):
            try:
                self._conclude(delayed.request, delayed.complete(now))
            except Exception as error:
                self._refuse(delayed.request, error)
            self._step_ended("request", delayed.request.body)
        self.handlers.sessions.expire(now.monotonic)
        self._run_task(now)

    def _time_left(self) -> float | None:
        if self._inbox or self._unfinished:
            return 0.0
        timers = self._partitions.shared.next_due
        deadline = min(self._purgatory.next_deadline(), timers, self._tasks[0][0])
        if self._fetcher.follows:
            deadline = min(deadline, self._fetcher.next_event())
        return max(0.0, deadline - time.monotonic())

    # -- steps -------------------------------------------------------------------------------------------

    def _run_task(self, now: Now) -> None:
        due, number, task = self._tasks[0]
        if due > now.monotonic:
            return
        pause = TRY_TASK_AGAIN
        try:
            pause = task(now)
        except Exception:
            logger.exception("a task of the broker failed; it is tried again in %g s", pause)
        heapq.heapreplace(self._tasks, (now.monotonic + pause, number, task))
        self._step_ended("task", task)

    def _handle_message(self, message: Message, now: Now) -> None:
        held = self._held.get(message.peer)
        request = Request(message.peer, NO_CORRELATION, None)
        try:
            envelope = wire.decode_envelope(message.frames[0])
            request = Request(message.peer, envelope.correlation_id, None)
            # A HELLO is a ping too, and is answered at once.
            if held is not None and envelope.api != Api.HELLO:
                if len(held[1]) < STEPS_PER_TURN:
                    held[1].append(message)
                    return
                raise Overloaded("too many requests wait for an earlier one: ask again later")
            body = wire.decode_body(envelope)
            request = request._replace(body=body, began=now.monotonic, version=envelope.version)
            self.requests.count_request(body, message.frames)
            outcome = handle(self.handlers, request, message.frames[1:], now)
            if outcome is None or isinstance(outcome, Response | DelayedResponse):
                self._conclude(request, outcome)
            else:
                self._advance(request, outcome)
        except Exception as error:
            self._refuse(request, error)
        self._step_ended("request", request.body)

    def _advance(
        self, request: Request, steps: JobGenerator, error: Exception | None = None
    ) -> bool:
        """Do some steps of a request; `error` is how the job that it has waited for failed. False: the
        request is finished."""
        try:
            job = next(steps) if error is None else steps.throw(error)
            until = min(self._step_began + STEP_TIME, self._steps_until)
            while job is None and time.monotonic() < until:
                job = next(steps)
        except StopIteration as end:
            self._conclude(request, end.value)
            return False
        if job is None:
            self._unfinished.append((request, steps, None))
        else:
            lane = getattr(job, "lane", Lane.INDEX)
            self.handlers.submit(lane, job.run, partial(self._finish_job, request, steps, job))
        self._held.setdefault(request.peer, (request, deque()))
        return True

    def _finish_job(self, request: Request, steps: JobGenerator, job: Job, result: Any) -> None:
        failure: Exception | None = None
        try:
            job.finish(result)
        except Exception as error:
            failure = error
        self._unfinished.append((request, steps, failure))

    def _resume(self, now: Now) -> None:
        request, steps, failure = self._unfinished.popleft()
        is_unfinished = False
        try:
            is_unfinished = self._advance(request, steps, failure)
        except Exception as error:
            self._refuse(request, error)
        self._step_ended("request", request.body)
        if not is_unfinished:
            for message in self._held.pop(request.peer)[1]:
                self._handle_message(message, now)

    def _step_ended(self, kind: str, what: Any = None) -> None:
        now = time.monotonic()
        took, self._step_began = now - self._step_began, now
        self.busy += took
        if took > self.longest_step:
            self.longest_step = took
        if took > SLOW_STEP:
            self.slow_steps += 1
            what = getattr(what, "func", what)
            name = "" if what is None else getattr(what, "__qualname__", type(what).__name__)
            self._slow_since.append((took, f"{kind} {name}".rstrip()))

    def _report_slow_steps(self, _now: Now) -> float:
        if self._slow_since:
            took, what = max(self._slow_since)
            logger.log(
                logging.WARNING if took >= WARN_OF_STEP else logging.DEBUG,
                "%d steps of the event loop took longer than %d ms, the longest %d ms: %s",
                *(len(self._slow_since), SLOW_STEP * 1000, took * 1000, what),
            )
            self._slow_since.clear()
        return REPORT_SLOW_STEPS

    def _look_at_connections(self, _now: Now) -> float:
        return 0.0 if self._socket.end_stalled_connections() else LOOK_AT_CONNECTIONS

    # -- responses ---------------------------------------------------------------------------------------

    def _conclude(self, request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, DelayedResponse):
            if outcome.missing:
                self._purgatory.enter(request.peer)
                self._owed[outcome] = request
                outcome.send = partial(self._send_delayed, outcome)
                return
            outcome = outcome.response()
        if outcome is not None:
            self._send(request, outcome)

    def _send_delayed(self, delayed: DelayedResponse, response: Response | Exception) -> None:
        request = self._owed.pop(delayed)
        delayed.send = None
        self._purgatory.leave(request.peer)
        try:
            if isinstance(response, Exception):
                raise response
            self._send(request, response)
        except Exception as error:
            self._refuse(request, error)

    def _send(self, request: Request, response: Response) -> None:
        body = wire.response_in(API_OF[type(request.body)], request.version, response.body)
        envelope = wire.encode_response(request.correlation_id, body)
        if not self._socket.send(request.peer, (envelope, *response.payloads)):
            raise Overloaded("too many bytes are on their way to this client: read them first")
        self.requests.count_response(request, response.payloads, time.monotonic())

    def _refuse(self, request: Request, error: Exception) -> None:
        if not isinstance(error, FolkmootError):
            logger.error("a request could not be answered", exc_info=error)
            error = UnknownServerError("the broker failed at this request: see its log")
        self.requests.count_error(request, error, time.monotonic())
        self._socket.send(request.peer, (wire.encode_error(request.correlation_id, error),))

    def _refuse_all(self) -> None:
        """The broker stops."""
        stopping = BrokerStopping("the broker is stopping: ask another one, or later")
        for request in (
            *(delayed.request for delayed in self._purgatory.take_all()),
            *self._owed.values(),
            *(request for request, _ in self._held.values()),
        ):
            self._refuse(request, stopping)
        held = (message for _, messages in self._held.values() for message in messages)
        for message in (*held, *self._socket.receive(LAST_MESSAGES)):
            with suppress(InvalidRequest):
                number = wire.decode_envelope(message.frames[0]).correlation_id
                self._refuse(Request(message.peer, number, None), stopping)
