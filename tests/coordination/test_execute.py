"""Asking with an end: whoever polls must not hang on a ZooKeeper that does not answer."""

import time
from collections.abc import Callable

import pytest

from folkmoot.coordination import brokers
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Operation,
    Recipe,
    SessionLost,
    Sync,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable


class Failing:
    """A session in which every operation ends with the same error, or (None) never."""

    chroot = ""
    state = SessionState.CONNECTED
    session_timeout = 6.0

    def __init__(self, error: ZooKeeperError | None) -> None:
        self._error = error

    def submit(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        if self._error is not None:
            callback(Outcome(None, self._error))

    def last_acknowledged(self) -> float:
        return 0.0

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [None, ConnectionLost("again and again")])
def test_what_is_not_answered_ends_in_time(error: ZooKeeperError | None) -> None:
    begun = time.monotonic()
    with pytest.raises(ZooKeeperUnreachable, match=r"within 0\.2 s"):
        execute(Failing(error), brokers.live(), 0.2)
    assert time.monotonic() - begun < 5.0


def test_a_session_that_is_over_is_a_zookeeper_that_may_come_back() -> None:
    with pytest.raises(ZooKeeperUnreachable, match="session was lost"):
        execute(Failing(SessionLost("over")), brokers.live(), 60.0)


def test_recipes_side_by_side_have_one_timeout_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("folkmoot.coordination.zookeeper.execute.AT_ONCE", 1)
    begun = time.monotonic()
    with pytest.raises(ZooKeeperUnreachable, match=r"within 0\.2 s"):
        execute_all(Failing(None), (brokers.live() for _ in range(10)), timeout=0.2)
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize(("timeout", "error"), [(None, SessionLost), (60.0, ZooKeeperUnreachable)])
def test_a_recipe_whose_session_is_lost_goes_on_in_another_one_as_after_a_lost_reply(
    timeout: float | None, error: type[Exception]
) -> None:
    def recipe() -> Recipe[str]:
        try:
            yield Sync()
        except ConnectionLost:
            return "looked what was done"
        return "done"

    left = recipe()
    with pytest.raises(error):
        execute(Failing(SessionLost("over")), left, timeout)
    assert execute(Failing(None), left, timeout) == "looked what was done"


def test_a_recipe_that_asks_nothing_has_its_result_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folkmoot.coordination.zookeeper.execute.AT_ONCE", 1)

    def recipe() -> Recipe[int]:
        yield from ()
        return 7

    assert execute(Failing(None), recipe(), 0.2) == 7
    assert execute_all(Failing(None), [recipe() for _ in range(3)]) == [7, 7, 7]
