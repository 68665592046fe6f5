"""The verdict sees what may not be, and nothing else."""

import pytest

from folkmoot.protocol.records import Record, TopicPartition
from tests.chaos.history import Committed, Life
from tests.chaos.spark import verdict
from tests.chaos.spark.app import runs
from tests.chaos.spark.faults import KINDS, Fault
from tests.chaos.spark.stage import password
from tests.chaos.spark.verdict import Output

PLACE = TopicPartition("numbers", 0)
KILLED = Fault("kill app", "a", 3.0, 9.0)


def output(at: float, who: str, batch: int, first: int, last: int, since: float) -> Output:
    return Output(at, PLACE, who, batch, first, last, since, not who.startswith("m"))


def unexplained(outputs: list[Output], life: Life, *faults: Fault) -> list[str]:
    return [why for _, why in verdict.again(outputs, life, faults) if why]


def test_records_that_nobody_put_out_are_lost_and_gaps_of_the_log_are_not() -> None:
    outputs = [output(1.0, "a", 0, 0, 4, 0.5), output(2.0, "a", 1, 7, 9, 1.5)]
    assert verdict.lost([0, 1, 2, 3, 4, 7, 8, 9], outputs) == 0
    assert verdict.lost([0, 1, 2, 3, 4, 5, 7, 8, 9, 10], outputs) == 2


def test_a_commit_of_what_is_put_out_later_is_too_early() -> None:
    outputs = [output(1.0, "a", 0, 0, 4, 0.5), output(2.0, "a", 1, 7, 9, 1.5)]
    life = Life(commits=[Committed(1.1, 1, 5), Committed(1.2, 1, 7), Committed(2.1, 1, 10)])
    offsets = [0, 1, 2, 3, 4, 7, 8, 9]
    assert verdict.committed_too_early(offsets, outputs, life) == []
    life.commits[1] = Committed(1.2, 1, 8)
    assert len(verdict.committed_too_early(offsets, outputs, life)) == 1


def test_what_was_in_a_batch_at_a_fault_may_come_twice() -> None:
    life = Life(commits=[Committed(1.0, 1, 5)])
    by_another = [output(4.0, "a", 3, 5, 9, 2.9), output(8.0, "m1", 7, 5, 9, 7.0)]
    assert unexplained(by_another, life, KILLED) == []
    assert unexplained(by_another, life)
    assert unexplained(by_another, life, Fault("kill app", "b", 3.0, 9.0))
    replayed = [output(5.0, "m1", 7, 5, 9, 4.0), output(12.0, "a", 3, 5, 9, 2.9)]
    life.commits.append(Committed(6.0, 2, 10))
    assert unexplained(replayed, life, KILLED) == []
    assert unexplained(replayed, life)


def test_what_was_committed_may_not_come_twice_also_with_a_fault() -> None:
    life = Life(commits=[Committed(4.5, 1, 10)])
    found = [output(4.0, "a", 3, 5, 9, 2.9), output(8.0, "m1", 7, 5, 9, 7.0)]
    assert unexplained(found, life, KILLED)


def test_what_the_group_was_reset_to_may_come_twice() -> None:
    life = Life(commits=[Committed(4.5, 1, 10)], resets=[Committed(6.0, 2, 5)])
    found = [output(4.0, "a", 3, 3, 9, 2.9), output(8.0, "m1", 7, 5, 9, 7.0)]
    assert unexplained(found, life) == []
    life.resets[0] = Committed(6.0, 2, 7)
    assert unexplained(found, life)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (range(200), []),
        (range(250), []),
        ([*range(200), 7], ["1 rows are in the sink's topic twice: [7]"]),
        ([*range(199)], ["1 rows are missing in the sink's topic: [199]"]),
        ([*range(200), 300], ["1 rows are in the sink's topic that nobody wrote: [300]"]),
    ],
)
def test_the_sinks_topic_has_each_row_once(values: list[int], said: list[str]) -> None:
    records = [
        Record("numbers", 0, offset, 0, None, b"%d" % value, ())
        for offset, value in enumerate(values)
    ]
    assert verdict.sink(records, 2, 100) == said


def test_runs_are_of_offsets_that_follow_on_each_other() -> None:
    assert list(runs([3, 4, 5, 8, 10, 11])) == [(3, 5), (8, 8), (10, 11)]
    assert list(runs([])) == []


def test_two_kinds_are_dealt_for_each_round() -> None:
    assert len(KINDS) % 2 == 0


def test_the_password_of_a_session_follows_from_its_id() -> None:
    assert password(0x10001939DCE0008).hex() == "095fca043dfca1e4787ee60eeb68f3cc"
