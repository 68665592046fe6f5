"""What does the faults must itself do what it says: in front of a commit, and for certain."""

import signal
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, NotEmptyError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult

from folkmoot.coordination import chronicle, members, plans
from folkmoot.coordination.memory import MemoryZooKeeper
from folkmoot.coordination.plan_format import Plan
from folkmoot.coordination.store import run
from tests.chaos.events import surely
from tests.chaos.member import Trap, TrappedStore
from tests.chaos.notes import Notes, NotesReader
from tests.coordination.groups import GROUP, Someone, make_plan


@pytest.fixture
def halts(monkeypatch: pytest.MonkeyPatch) -> list[signal.Signals]:
    """The signals that this process would have sent to itself."""
    found: list[signal.Signals] = []
    monkeypatch.setattr(signal, "raise_signal", found.append)
    return found


def test_a_member_stops_in_front_of_its_next_commit_and_of_nothing_else(
    tmp_path: Path, halts: list[signal.Signals]
) -> None:
    notes = tmp_path / "notes"
    trap = Trap(Notes(str(notes)), GROUP)
    store = TrappedStore(MemoryZooKeeper().connect(), trap)
    trap.is_set = True
    member = Someone(store, "a")
    make_plan(store, member.name)
    member.release(member.claim(), 3)
    held = member.claim()
    run(store, plans.replace(GROUP, {}, lambda *_: Plan(2)))
    run(store, chronicle.record(GROUP, member.name, Plan(1), Plan(2), {}))
    assert trap.is_set
    assert not halts

    held = member.committed(held, 5)
    assert halts == [signal.SIGSTOP]
    member.committed(held, 6)
    run(store, members.leave(GROUP, member.name))
    assert halts == [signal.SIGSTOP]
    epoch = held.state.epoch
    assert list(NotesReader(notes).read()) == [["halted", f"t/0/{epoch}/5"], ["outcome", "done"]]


def test_a_reply_that_is_lost_is_asked_for_again() -> None:
    asked: list[Exception] = []

    def begin() -> "IAsyncResult[bool]":
        answer = SequentialThreadingHandler().async_result()
        asked.append(ConnectionLoss() if len(asked) < 2 else NoNodeError())
        answer.set_exception(asked[-1])
        return answer

    assert len(list(surely(begin, NoNodeError))) == 2
    assert [type(each) for each in asked] == [ConnectionLoss, ConnectionLoss, NoNodeError]


def test_a_refusal_is_not_asked_for_again() -> None:
    def begin() -> "IAsyncResult[bool]":
        answer = SequentialThreadingHandler().async_result()
        answer.set_exception(NotEmptyError())
        return answer

    with pytest.raises(NotEmptyError):
        list(surely(begin, NoNodeError))
