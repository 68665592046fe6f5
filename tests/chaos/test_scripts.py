"""What does the faults and adds them up must itself do what it says."""

import signal
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, NotEmptyError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult

from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.zookeeper.execute import execute
from tests.chaos.__main__ import shares
from tests.chaos.events import surely
from tests.chaos.member import Trap, TrappedSession
from tests.chaos.notes import Notes, NotesReader
from tests.chaos.results import Result, Totals
from tests.coordination.groups import GROUP, Someone, make_plan, replace
from tests.memory_zookeeper import MemoryZooKeeper


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
    session = TrappedSession(MemoryZooKeeper().connect(), trap)
    trap.is_set = True
    member = Someone(session, "a")
    make_plan(session, member.name)
    member.release(member.claim(), 3)
    held = member.claim()
    assert execute(session, replace(GROUP, member.name, {}, lambda *_: Plan(2)))
    assert trap.is_set
    assert not halts

    held = member.committed(held, 5)
    assert halts == [signal.SIGSTOP]
    member.committed(held, 6)
    execute(session, members.remove(GROUP, member.name))
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


def test_events_are_shared_out_among_clusters() -> None:
    assert shares(300, each=300, at_once=2) == [150, 150]
    assert shares(1000, each=300, at_once=2) == [250] * 4
    assert shares(301, each=300, at_once=1) == [151, 150]


def test_what_several_processes_have_done_is_added_up(tmp_path: Path) -> None:
    one, another = Totals(tmp_path / "state.json"), Totals(tmp_path / "state.json")
    assert one.next_seed == 1
    for seed, totals in enumerate((one, another, one), start=7):
        totals.add(
            Result(
                seed=seed,
                events=10,
                seconds=1.5,
                kinds={"join": seed},
                slowest={},
                slowest_shaken={},
                zombies={"tried": 2, "refused": 2},
                counts={},
                longest={"to settle": float(seed)},
            )
        )
    found = another.summary()
    assert (found["events"], found["seeds"], found["failed"]) == (30, [7, 8, 9], 0)
    assert (found["kinds"], found["longest"]) == ({"join": 24}, {"to settle": 9.0})
    assert another.next_seed == 10
