"""Verbs carried out step by step: with a lost reply, or until their process dies."""

from typing import Any, TypeVar

from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Multi,
    Operation,
    StoreError,
    Verb,
)
from folkmoot.coordination.zookeeper.session import Store, perform

T = TypeVar("T")
ENOUGH = 60
"""No verb of these tests takes so many steps."""


def going_on(verb: Verb[T], operation: Operation) -> Verb[T]:
    """A verb that has yielded an operation already, from there on."""
    try:
        while True:
            try:
                result = yield operation
            except StoreError as error:
                operation = verb.throw(error)
            else:
                operation = verb.send(result)
    except StopIteration as stop:
        returned: T = stop.value
        return returned


def step(store: Store, verb: Verb[T], operation: Operation) -> Operation:
    """Carry one operation of a verb out; returns the next."""
    try:
        result = perform(store, operation)
    except StoreError as error:
        return verb.throw(error)
    return verb.send(result)


def up_to_its_write(store: Store, verb: Verb[Any]) -> Operation:
    """The transaction that a verb is about to send."""
    operation = next(verb)
    while not isinstance(operation, Multi):
        operation = step(store, verb, operation)
    return operation


class Steps:
    """Runs a verb; `taken` operations were submitted by it."""

    def __init__(self, store: Store) -> None:
        self.taken = 0
        self._store = store

    def run(self, verb: Verb[T], lost: int = -1, *, executed: bool = True) -> T:
        """To its end; the reply to the operation number `lost` does not come."""
        try:
            operation = next(verb)
            while self.taken < ENOUGH:
                operation = self._step(verb, operation, self.taken == lost, executed)
            raise AssertionError("this verb does not end")
        except StopIteration as stop:
            result: T = stop.value
            return result

    def run_until(self, verb: Verb[T], step: int) -> bool:
        """The first `step` operations, and then the process is no more. False if it ended before."""
        try:
            operation = next(verb)
            for _ in range(step):
                operation = self._step(verb, operation, False, True)
        except StopIteration:
            return False
        verb.close()
        return True

    def _step(self, verb: Verb[T], operation: Operation, lost: bool, executed: bool) -> Operation:
        self.taken += 1
        try:
            if lost and not executed:
                raise ConnectionLost("lost on the way there")
            result = perform(self._store, operation)
            if lost:
                raise ConnectionLost("lost on the way back")
        except StoreError as error:
            return verb.throw(error)
        return verb.send(result)
