"""Logging by clients' own threads, which never wait for a handler.

An application may have a handler that sends log lines to a topic. `send` then runs under the handler's lock
and can wait for the producer's thread: to find brokers, or for room. If that thread waited for the same lock
to log something, both would block until a timeout.

So threads within `logging_aside` put their records into a queue, and one daemon thread of the process
passes them to the handlers. Other threads log as usual.
"""

import atexit
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

MAX_WAITING: Final = 10_000
"""Records that may wait for a handler; further ones are dropped."""
END_WAIT: Final = 0.2
"""Seconds that a thread's end, and the process's, waits for its last lines to be written."""

_here = threading.local()


def thread_log(name: str) -> "ThreadLog":
    """Return a module's log, in place of `logging.getLogger`."""
    return ThreadLog(logging.getLogger(name), {})


@contextmanager
def logging_aside() -> Iterator[None]:
    """Let the calling thread log without waiting within the block: all work of a client's thread."""
    before = getattr(_here, "is_aside", False)
    _here.is_aside = True
    try:
        yield
    finally:
        _here.is_aside = before


def wait_until_written(timeout: float = END_WAIT) -> None:
    """Wait until what was logged before is written, or the timeout is over."""
    _writer.wait(timeout)


class ThreadLog(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Logs as the logger that it wraps does, without waiting within `logging_aside`."""

    is_always_aside = False

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        kwargs.setdefault("stacklevel", 2)
        if not (self.is_always_aside or getattr(_here, "is_aside", False)):
            self.logger.log(level, msg, *args, **kwargs)
            return
        _Recorder(self.logger).log(level, msg, *args, **kwargs)


class LibraryLog(ThreadLog):
    """For a library with threads of its own: never waits, in any thread."""

    is_always_aside = True


class _Recorder(logging.Logger):
    """Makes records as a logger does, and puts them into the queue instead of handling them."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__(target.name, logging.NOTSET)
        self._target = target

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's own
        return True

    def handle(self, record: logging.LogRecord) -> None:
        _writer.put(self._target, record)


class _Writer:
    """The thread that hands records to handlers; another one after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_started = False
        self._queue: SimpleQueue[tuple[logging.Logger, logging.LogRecord] | threading.Event] = (
            SimpleQueue()
        )

    def put(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if not self._is_started:
            self._start()
        if self._queue.qsize() < MAX_WAITING:
            self._queue.put((logger, record))

    def wait(self, timeout: float) -> None:
        if self._is_started:
            written = threading.Event()
            self._queue.put(written)
            written.wait(timeout)

    def _start(self) -> None:
        with self._lock:
            if not self._is_started:
                threading.Thread(target=self._run, name="folkmoot-log", daemon=True).start()
                self._is_started = True

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                item[0].handle(item[1])
            except Exception:  # a filter's; handlers report their own errors themselves
                traceback.print_exc()


def _begin_again() -> None:
    """Start again in a forked child, which does not have its parent's thread."""
    global _writer
    _writer = _Writer()


_writer = _Writer()
atexit.register(wait_until_written)
os.register_at_fork(after_in_child=_begin_again)
