"""Recipes carried out step by step: with a lost reply, or until their process dies."""

from collections import Counter
from typing import Any, TypeVar

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Create,
    Multi,
    Operation,
    Recipe,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Session

T = TypeVar("T")
ENOUGH = 60
"""No recipe of these tests takes so many steps."""


def going_on(recipe: Recipe[T], operation: Operation) -> Recipe[T]:
    """A recipe that has yielded an operation already, from there on."""
    try:
        while True:
            try:
                result = yield operation
            except ZooKeeperError as error:
                operation = recipe.throw(error)
            else:
                operation = recipe.send(result)
    except StopIteration as stop:
        returned: T = stop.value
        return returned


def step(session: Session, recipe: Recipe[T], operation: Operation) -> Operation:
    """Carry one operation of a recipe out; returns the next."""
    try:
        result = execute(session, operation)
    except ZooKeeperError as error:
        return recipe.throw(error)
    return recipe.send(result)


def up_to_its_write(session: Session, recipe: Recipe[Any]) -> Operation:
    """The transaction that a recipe is about to send, whatever it has made room with before."""
    operation = next(recipe)
    while not isinstance(operation, Multi) or all(
        isinstance(write, Create) for write in operation.writes
    ):
        operation = step(session, recipe, operation)
    return operation


def counted(session: Session, recipe: Recipe[T]) -> tuple[T, Counter[str]]:
    """What a recipe returns, and how many operations of each kind it took."""
    kinds: Counter[str] = Counter()
    try:
        operation = next(recipe)
        while True:
            kinds[type(operation).__name__] += 1
            operation = step(session, recipe, operation)
    except StopIteration as stop:
        return stop.value, kinds


class Steps:
    """Runs a recipe; `taken` operations were submitted by it."""

    def __init__(self, session: Session) -> None:
        self.taken = 0
        self._session = session

    def run(self, recipe: Recipe[T], lost: int = -1, *, executed: bool = True) -> T:
        """To its end; the reply to the operation number `lost` does not come."""
        try:
            operation = next(recipe)
            while self.taken < ENOUGH:
                operation = self._step(recipe, operation, self.taken == lost, executed)
            raise AssertionError("this recipe does not end")
        except StopIteration as stop:
            result: T = stop.value
            return result

    def run_until(self, recipe: Recipe[T], step: int) -> bool:
        """The first `step` operations, and then the process is no more. False if it ended before."""
        try:
            operation = next(recipe)
            for _ in range(step):
                operation = self._step(recipe, operation, False, True)
        except StopIteration:
            return False
        recipe.close()
        return True

    def _step(
        self, recipe: Recipe[T], operation: Operation, lost: bool, executed: bool
    ) -> Operation:
        self.taken += 1
        try:
            if lost and not executed:
                raise ConnectionLost("lost on the way there")
            result = execute(self._session, operation)
            if lost:
                raise ConnectionLost("lost on the way back")
        except ZooKeeperError as error:
            return recipe.throw(error)
        return recipe.send(result)
