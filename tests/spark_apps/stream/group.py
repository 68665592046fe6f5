"""A group and brokers played by the test, around the member that a query is."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, cast

from folkmoot.consumers.group.events import Assigned, Committed, Left, Lost, Notice, Revoking
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import UnknownTopicOrPartition
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Ends, InitialTopic, Range, to_json
from folkmoot.spark_apps.offsets.log_watch import End, ReadPosition
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.source import MAX_ROWS
from folkmoot.spark_apps.stream.group_member import GroupPlan
from folkmoot.spark_apps.stream.query_member import QueryMember
from folkmoot.spark_apps.tasks.planning import SMALL_TASK

ID = "id-of-flights"


def flights(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


class FakeMember:
    """The group thread: what it is asked is written down, commits are answered at once."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.notices: deque[Notice] = deque()
        self.error: BaseException | None = None
        self.name: str | None = "spark-0"
        self.generation = 7
        self.plan: set[TopicPartition] | None = set()
        self.calls: list[tuple[Any, ...]] = []
        self.committed: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.not_ours: set[TopicPartition] = set()
        self.silent = False
        self.topics = {"flights": TopicBasis(ID, 4)}
        self.polls = 0
        self._wakeup = wakeup

    def read_plan(self) -> GroupPlan | None:
        return None if self.plan is None else GroupPlan(frozenset(self.plan), self.topics)

    def polled(self, now: float) -> None:
        self.polls += 1

    def gain(self, number: int, offset: int | None, topic_id: str = ID, *, reset: str = "") -> None:
        assert self.plan is not None
        self.plan.add(flights(number))
        self.epochs[flights(number)] = epoch = self.epochs.get(flights(number), 0) + 1
        self.tell(Assigned(flights(number), topic_id, offset, epoch, reset))

    def revoke(self, number: int) -> None:
        assert self.plan is not None
        self.plan.discard(flights(number))
        self.tell(Revoking(flights(number)))

    def lose(self, number: int) -> None:
        assert self.plan is not None
        self.plan.discard(flights(number))
        self.tell(Lost(flights(number), "another member took it over"))

    def tell(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._wakeup.wake()

    def start(self) -> None:
        self.calls.append(("start",))

    def commit(
        self, offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> None:
        assert epochs == {each: self.epochs[each] for each in offsets}
        self.calls.append(("commit", {each.partition: at for each, at in offsets.items()}))
        if self.silent:
            return
        refused = frozenset(offsets) & self.not_ours
        done = {each: offset for each, offset in offsets.items() if each not in refused}
        self.committed.update(done)
        for each in refused:
            self.tell(Lost(each, "a commit was fenced"))
        self.tell(Committed(0, done, refused))

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        assert epoch == self.epochs[partition]
        self.calls.append(("drained", partition.partition, offset))

    def begin_to_leave(self) -> None:
        self.calls.append(("leave",))
        self.tell(Left())

    def stop(self, timeout: float) -> None:
        self.calls.append(("stop",))

    def take_calls(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


class FakeLogs:
    """Brokers: logs run from `starts` (0) to `log_ends`, led in `epoch`."""

    def __init__(self) -> None:
        self.log_ends: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.times: dict[TopicPartition, int | None] = {}
        self.truncated: dict[TopicPartition, int] = {}
        self.trouble: Exception | None = None
        self.epoch = 3
        self.refuses = False
        self.record_size = 0.0
        self.read_positions: dict[TopicPartition, ReadPosition] = {}

    def watch(
        self, places: Mapping[TopicPartition, ReadPosition], wait: float, wake: Wakeup
    ) -> dict[TopicPartition, End]:
        if self.trouble is not None:
            raise self.trouble
        self.read_positions = dict(places)
        return {
            each: End(
                *(place.topic_id, self.log_ends[each], self.epoch, self.starts.get(each, 0)),
                refused=place.offset if self.refuses and place.offset > self.log_ends[each] else -1,
            )
            for each, place in places.items()
            if each in self.log_ends
        }

    def find(
        self, wanted: Mapping[TopicPartition, str], place: int, wait: float = 0
    ) -> dict[TopicPartition, int]:
        if place == EARLIEST:
            return {each: self.starts.get(each, 0) for each in wanted}
        return {each: self.log_ends[each] for each in wanted if each in self.log_ends}

    def first_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {each: self.times[each] for each in times}

    def leader_address(self, partition: TopicPartition) -> str | None:
        return "broker:1"

    def record_bytes(self, topic: str) -> float:
        return self.record_size

    def partitions(self, topic: str, wait: float) -> range:
        if self.trouble is not None:
            raise self.trouble
        if topic != "flights":
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
        return range(4)

    def topic_id(self, topic: str) -> str:
        return ID

    def describe_silence(self, partitions: Collection[TopicPartition]) -> str:
        return f"nobody told of {', '.join(map(str, partitions))}"

    def brokers(self) -> frozenset[str]:
        return frozenset({"broker:1"})

    def close(self) -> None:
        pass


class Scene:
    """A query's member between an engine and a group, both played by the test."""

    def __init__(self, reader_schema: int = 0, **options: Any) -> None:
        self.wakeup = Wakeup()
        self.group = FakeMember(self.wakeup)
        self.logs = FakeLogs()
        settings = {"zookeeper": "z", "group": "g", "subscribe": "flights"} | options
        config = StreamConfig(**settings)
        planned = self.group.read_plan
        member, logs = cast(Any, self.group), cast(Any, self.logs)
        self.query = QueryMember(config, member, logs, planned, self.wakeup, reader_schema)
        self.query.start()
        self.group.take_calls()

    def log_ends(self, **ends: int) -> None:
        for name, end in ends.items():
            self.logs.log_ends[flights(int(name.removeprefix("p")))] = end

    def latest(self, start: dict[str, Any], limit: int = MAX_ROWS) -> dict[str, Any]:
        return self.query.latest(start, limit)


EMPTY = to_json(Ends("g"))


def end(**ranges: tuple[int, int]) -> dict[str, Any]:
    """As a query has it that began with four partitions; by a leader of epoch 3."""
    made = {flights(int(name[1:])): Range(*bounds, 3) for name, bounds in ranges.items()}
    return ends(made)


def ends(ranges: Mapping[TopicPartition, Range]) -> dict[str, Any]:
    return to_json(Ends("g", ranges, {"flights": ID}, {"flights": InitialTopic(ID, 4)}, SMALL_TASK))
