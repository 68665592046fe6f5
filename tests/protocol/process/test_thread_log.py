"""Clients' threads log without waiting for an application's handlers."""

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from folkmoot.protocol.process.thread_log import (
    LibraryLog,
    logging_aside,
    thread_log,
    wait_until_written,
)

DEADLINE = 10.0


class Held(logging.Handler):
    """Keeps what it is given; its lock can be held by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.threads: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.threads.append(threading.current_thread().name)


@pytest.fixture
def handler() -> Iterator[Held]:
    found = Held()
    logger = logging.getLogger("folkmoot.tests.aside")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_thread_that_logs_aside_does_not_wait_for_the_handler(handler: Held) -> None:
    log = thread_log("folkmoot.tests.aside")

    def work() -> None:
        with logging_aside():
            try:
                raise ValueError("why")
            except ValueError:
                log.exception("a %s", "sentence")

    handler.acquire()
    try:
        thread = in_thread(work)
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert handler.records == []
    finally:
        handler.release()
    wait_until_written(DEADLINE)
    (record,) = handler.records
    assert record.getMessage() == "a sentence"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert (record.name, record.filename, record.funcName) == (
        "folkmoot.tests.aside",
        "test_thread_log.py",
        "work",
    )


def test_other_threads_log_at_once_and_a_librarys_threads_never_wait(handler: Held) -> None:
    mine = threading.current_thread().name
    thread_log("folkmoot.tests.aside").warning("at once")
    assert handler.threads == [mine]
    assert handler.records[0].funcName.startswith("test_other_threads")
    LibraryLog(logging.getLogger("folkmoot.tests.aside"), {}).warning("later")
    wait_until_written(DEADLINE)
    assert handler.threads == [mine, "folkmoot-log"]


def test_levels_that_are_off_make_no_record(handler: Held) -> None:
    log = LibraryLog(logging.getLogger("folkmoot.tests.aside"), {})
    log.debug("not this one")
    wait_until_written(DEADLINE)
    assert handler.records == []


def test_a_forked_child_logs_by_a_thread_of_its_own(handler: Held) -> None:
    log = LibraryLog(logging.getLogger("folkmoot.tests.aside"), {})
    log.warning("before")
    wait_until_written(DEADLINE)
    child = os.fork()
    if child == 0:
        log.warning("in the child")
        wait_until_written(DEADLINE)
        os._exit(len(handler.records))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
