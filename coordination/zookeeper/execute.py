"""Carries out operations and recipes on a session, and waits for them."""

import time
from collections.abc import Generator, Iterable
from inspect import GEN_SUSPENDED, getgeneratorstate
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, overload

from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Operation,
    Recipe,
    SessionLost,
)
from folkmoot.coordination.zookeeper.session import Outcome, Session
from folkmoot.protocol.errors import ZooKeeperUnreachable

_T = TypeVar("_T")

_SESSION_LOST: Final = Outcome(None, ConnectionLost("the session was lost before the answer"))
AT_ONCE: Final = 200
"""Recipes of `execute_all` that are under way at a time: more than a session sends at once."""


@overload
def execute(session: Session, what: Operation, timeout: float | None = None) -> Any: ...


@overload
def execute(session: Session, what: Recipe[_T], timeout: float | None = None) -> _T: ...


def execute(session: Session, what: Operation | Recipe[Any], timeout: float | None = None) -> Any:
    """Carry out an operation, or a recipe step by step, and return its result. Raises its errors.

    Without a `timeout` (seconds) it waits until ZooKeeper has answered, or raises SessionLost. With one,
    raises ZooKeeperUnreachable after it, or when the session is lost: for recipes that only read, or that
    may be left unfinished.

    A recipe that a lost session has interrupted may be continued in another session, as after a lost reply:
    the operation under way was done, or never will be.
    """
    recipe = what if isinstance(what, Generator) else _step(what)
    (result,) = execute_all(session, (recipe,), timeout=timeout)
    return result


def execute_all(
    session: Session, recipes: Iterable[Recipe[_T]], *, timeout: float | None = None
) -> list[_T]:
    """Carry out independent recipes side by side → their results in order.

    A thousand of them take about as long as ZooKeeper works, not a thousand round trips. Raises the error
    of the first one that fails; operations of others are done or not by then. `timeout` is that of
    `execute`, for all of them together.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = enumerate(recipes)
    answers: SimpleQueue[tuple[int, Outcome | None]] = SimpleQueue()
    in_flight: dict[int, Recipe[_T]] = {}
    results: dict[int, _T] = {}
    while True:
        for number, recipe in islice(waiting, AT_ONCE - len(in_flight)):
            in_flight[number] = recipe
            is_interrupted = getgeneratorstate(recipe) == GEN_SUSPENDED
            answers.put((number, _SESSION_LOST if is_interrupted else None))
        if not in_flight:
            return [results[number] for number in range(len(results))]
        try:
            number, outcome = answers.get(timeout=_left(deadline))
        except Empty:
            why = ""
            if getattr(session, "is_refused", False):
                why = ": it refuses the session: it has no quorum, or was set back or emptied"
            seconds = round(timeout or 0, 2)  # the rest of another timeout has many digits
            raise ZooKeeperUnreachable(
                f"ZooKeeper did not answer within {seconds:g} s{why}"
            ) from None
        if outcome is not None and isinstance(outcome.error, SessionLost):
            if timeout is None:
                raise outcome.error
            raise ZooKeeperUnreachable("the ZooKeeper session was lost")
        try:
            operation = advance(in_flight[number], outcome)
        except StopIteration as stop:
            results[number] = stop.value
            del in_flight[number]
        else:

            def answered(answer: Outcome, number: int = number) -> None:
                answers.put((number, answer))

            session.submit(operation, answered)


def advance(recipe: Recipe[Any], outcome: Outcome | None) -> Operation:
    """Give a recipe the answer to its last operation, None at the start → its next operation.

    Raises StopIteration with the recipe's result, and the recipe's own errors.
    """
    if outcome is None:
        return next(recipe)
    if outcome.error is not None:
        return recipe.throw(outcome.error)
    return recipe.send(outcome.result)


def _step(operation: Operation) -> Recipe[Any]:
    return (yield operation)


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline. Raises Empty after it, even if there are answers: they may never end."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise Empty
    return left
