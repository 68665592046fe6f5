"""Partitions whose leaders are played by the test, and are asked to give up records."""

from functools import partial
from typing import Any

from folkmoot.network.ask_leaders import ENTRIES, LeaderRequests, ask_leaders
from folkmoot.network.client import Reply
from folkmoot.network.connection import mismatch
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    NotLeader,
    OffsetOutOfRange,
    RequestTimeout,
    StaleTopicId,
)
from folkmoot.protocol.messages import (
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from folkmoot.protocol.records import TopicPartition


class Leaders:
    """A cluster: a poll brings the answers to what was asked, or takes as long as it may."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metadata_error: FolkmootError | None = None
        self.nobody = False
        self.lost_leader: set[int] = set()
        self.leaderless: dict[TopicPartition, tuple[int, ...]] = {}
        self.refusals: dict[int, list[FolkmootError]] = {}
        self.lost = 0
        self.asked: list[Any] = []
        self.answers = 0
        self.busy: set[str] = set()
        self._replies: list[Reply] = []

    def leader_address(self, partition: TopicPartition) -> str | None:
        if self.nobody or partition.partition in self.lost_leader:
            return None
        return f"broker-{partition.partition % 2}:1"

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 3

    def has_in_flight(self, address: str, api: Api) -> bool:
        return address in self.busy

    def send(self, address: str, api: Api, request: Any, *, timeout: float) -> int:
        assert api is Api.DELETE_RECORDS
        self.asked.append(request)
        number = len(self.asked)
        results = [self._answer(entry) for entry in request.entries]
        if self.lost:
            self.lost -= 1
            lost = Reply(number, address, api, None, BrokerUnreachable("it has vanished"), [])
            self._replies.append(lost)
        else:
            self._replies.append(
                Reply(number, address, api, DeleteRecordsResponse(results), None, [])
            )
        return number

    def _answer(self, entry: Any) -> DeleteRecordsResult:
        refusals = self.refusals.get(entry.partition)
        if refusals:
            error = refusals.pop(0)
            return DeleteRecordsResult(
                entry.topic, entry.partition, error.code or 0, str(error), -1
            )
        return DeleteRecordsResult(entry.topic, entry.partition, 0, "", entry.offset)

    def poll(self, timeout: float) -> list[Reply]:
        replies, self._replies = self._replies, []
        self.now += 0.001 if replies else max(timeout, 0.001)
        return replies


def _entry(number: int, epoch: int) -> DeleteRecordsEntry:
    return DeleteRecordsEntry("t", "id", number, epoch, 10 + number)


def delete(
    leaders: Leaders, *numbers: int, timeout: float = 5.0, patient: bool = True
) -> LeaderRequests:
    wanted = {TopicPartition("t", number): partial(_entry, number) for number in numbers}
    deletion = ask_leaders(
        leaders,  # type: ignore[arg-type]
        Api.DELETE_RECORDS,
        wanted,
        lambda entries, _: DeleteRecordsRequest(entries),
        timeout,
        patient=patient,
        clock=lambda: leaders.now,
    )
    assert deletion.results.keys() | deletion.failed.keys() == wanted.keys()
    assert not deletion.results.keys() & deletion.failed.keys()
    return deletion


def starts(deletion: LeaderRequests) -> dict[TopicPartition, int]:
    return {each: result.log_start for each, result in deletion.results.items()}


def test_every_leader_is_asked_once_for_all_of_its_partitions() -> None:
    leaders = Leaders()
    assert starts(delete(leaders, 0, 1, 2, 3)) == {
        TopicPartition("t", number): 10 + number for number in range(4)
    }
    assert [[entry.partition for entry in each.entries] for each in leaders.asked] == [
        [0, 2],
        [1, 3],
    ]
    assert {(e.topic_id, e.leader_epoch) for each in leaders.asked for e in each.entries} == {
        ("id", 3)
    }


def test_more_partitions_than_a_request_may_name_take_several() -> None:
    leaders = Leaders()
    count = 2 * ENTRIES + 100
    assert len(delete(leaders, *range(0, 2 * count, 2)).results) == count
    assert [len(each.entries) for each in leaders.asked] == [ENTRIES, ENTRIES, 100]


def test_what_may_go_away_is_asked_again_and_nothing_else() -> None:
    leaders = Leaders()
    leaders.refusals = {
        0: [NotLeader("it has moved"), NotLeader("it has moved")],
        1: [OffsetOutOfRange("it ends before")],
        2: [StaleTopicId("it is another topic now")],
    }
    deletion = delete(leaders, 0, 1, 2)
    assert starts(deletion) == {TopicPartition("t", 0): 10}
    assert [type(deletion.failed[TopicPartition("t", number)]) for number in (1, 2)] == [
        OffsetOutOfRange,
        StaleTopicId,
    ]
    assert leaders.now < 1.0


def test_a_lost_answer_is_asked_for_again() -> None:
    leaders = Leaders()
    leaders.lost = 2
    assert len(delete(leaders, 0, 2).results) == 2
    assert len(leaders.asked) == 3


def test_an_answer_to_what_somebody_else_has_asked_is_passed_over() -> None:
    leaders = Leaders()
    stray = DeleteRecordsResponse([DeleteRecordsResult("u", 0, 0, "", 1)])
    leaders._replies.append(Reply(-7, "broker-0:1", Api.DELETE_RECORDS, stray, None, []))
    assert starts(delete(leaders, 0)) == {TopicPartition("t", 0): 10}


def test_without_a_leader_it_ends_in_time_and_says_so() -> None:
    leaders = Leaders()
    leaders.nobody = True
    assert isinstance(delete(leaders, 0).failed[TopicPartition("t", 0)], RequestTimeout)
    assert leaders.now < 6.0
    leaders.metadata_error = BrokerUnreachable("no broker is registered")
    assert delete(leaders, 0).failed == {TopicPartition("t", 0): leaders.metadata_error}


def test_the_impatient_wait_neither_for_a_leader_nor_for_one_that_owes_an_answer() -> None:
    leaders = Leaders()
    leaders.busy = {"broker-1:1"}
    leaders.leaderless = {TopicPartition("t", 2): (7,)}
    leaders.lost_leader = {2}
    assert starts(delete(leaders, 0, 1, 2, patient=False)) == {TopicPartition("t", 0): 10}
    assert leaders.now < 1.0
    leaders.busy.clear()
    assert len(delete(leaders, 0, 1, patient=False).results) == 2


def test_leaders_that_new_metadata_names_are_asked_at_once() -> None:
    leaders = Leaders()
    leaders.nobody = True

    def elected(timeout: float) -> list[Reply]:
        leaders.nobody = False
        leaders.answers += 1
        return Leaders.poll(leaders, 0.001)

    leaders.poll = elected  # type: ignore[method-assign]
    assert starts(delete(leaders, 0)) == {TopicPartition("t", 0): 10}
    assert leaders.now < 0.1


def test_results_for_other_partitions_than_were_asked_for_are_no_answer() -> None:
    entries = [DeleteRecordsEntry("t", "id", number, 3, 10) for number in (0, 1)]
    request = DeleteRecordsRequest(entries)
    results = [DeleteRecordsResult("t", number, 0, "", 10) for number in (0, 1)]
    for given in ([], results[:1], results[::-1], [*results, results[1]]):
        assert mismatch(Api.DELETE_RECORDS, request, DeleteRecordsResponse(given), [])
    assert mismatch(Api.DELETE_RECORDS, request, DeleteRecordsResponse(results), []) is None
