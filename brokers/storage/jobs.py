"""How the storage is handed its work: a moment, a periodic task, a job on another thread."""

import logging
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeVar

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Now(NamedTuple):
    """One moment in both clocks: `monotonic` seconds for deadlines, `wall` in ms for stamps."""

    monotonic: float
    wall: int


Task = Callable[[Now], float]
"""A bounded piece of work on the event loop; returns the seconds after which it is wanted again."""


class Submit(Protocol):
    """Has `work` done on a background thread and its result given to `done` on the event loop.

    `work` touches only what it was given: descriptors, paths, bytes that never change. Jobs of one
    key run in the order of submission, one at a time; jobs of different keys do not wait for each
    other. An Exception that `work` raises is given to `done` in place of the result.
    """

    def __call__(
        self,
        key: Hashable,
        work: Callable[[], _T],
        done: Callable[[_T | Exception], None],
        /,
    ) -> None: ...


def at_once(
    key: Hashable, work: Callable[[], _T], done: Callable[[_T | Exception], None], /
) -> None:
    """Do a job here and now: for starts, stops and tests, where nobody else waits."""
    try:
        result: _T | Exception = work()
    except Exception as error:
        result = error
    done(result)


def log_failure(what: str, outcome: object) -> None:
    """The `done` of jobs whose failure is said in the log and does no more harm."""
    if isinstance(outcome, Exception):
        logger.error("%s: %s", what, outcome)
