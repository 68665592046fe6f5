"""Histories that chance hardly finds, step by step: each says what happens next, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from folkmoot.brokers.replication.follower_state import Append, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.replication.replica_state import PersistEpoch, ReplicaState
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochEnd, EpochStarts
from folkmoot.coordination.partition_states import (
    Answer,
    BrokerReplaced,
    PartitionState,
    StateWrite,
    Superseded,
    VersionedState,
)
from folkmoot.protocol.errors import FolkmootError
from tests.simulation.checks import Violation
from tests.simulation.replication.checks import Record, ReplicationChecks

REPLICAS = (1, 2, 3)
MIN_IN_SYNC = 2
MAX_LAG = 0.3


class Rules:
    """What a mutation takes away of what is not in the state machines."""

    epochs_are_persisted = True
    ends_begin_epochs = True


class Disk:
    """The log of one replica: what the process sees, and what of it is on disk."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.durable: list[Record] = []
        self.epoch = NO_EPOCH
        self.starts = EpochStarts()

    @property
    def log_end(self) -> int:
        return len(self.records)

    @property
    def durable_end(self) -> int:
        same = [a == b for a, b in zip(self.records, self.durable, strict=False)]
        return [*same, False].index(False)

    def append(self, records: list[Record]) -> None:
        for record in records:
            self.starts.note_batch(record.epoch, len(self.records))
            self.records.append(record)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.starts.cut(offset)

    def contents(self, offset: int, end: int) -> list[tuple[int, Record]]:
        return list(enumerate(self.records))[offset:end]


@dataclass
class Life:
    """A process."""

    replica: ReplicaState
    high_watermark: int = 0
    waiting: list[tuple[int, Record]] = field(default_factory=list)


class Asked(NamedTuple):
    """A fetch on its way."""

    replica: int
    broker_epoch: int
    position: Position


class Answered(NamedTuple):
    """Its answer on the way back."""

    position: Position
    diverging: EpochEnd | None
    records: list[Record]
    high_watermark: int


class Stage:
    """Three brokers, whose flushes take no time, and the partition's state. Raises Violation."""

    def __init__(self) -> None:
        self.checks = ReplicationChecks()
        self.rules = Rules()
        self.replicas: tuple[int, ...] = REPLICAS
        self.disks = {each: Disk() for each in REPLICAS}
        self.broker_epochs = dict.fromkeys(REPLICAS, 0)
        self.lives: dict[int, Life] = {}
        self.state = VersionedState(PartitionState(1, 0, REPLICAS, 1), 0)
        for each in REPLICAS:
            self.start(each)
        self.read(1, 2, 3)
        self.read(2, 3)

    # -- what happens -------------------------------------------------------------------------------

    def start(self, *brokers: int) -> None:
        for each in brokers:
            disk = self.disks[each]
            disk.starts = EpochStarts()
            for offset, record in enumerate(disk.records):
                disk.starts.note_batch(record.epoch, offset)
            self.broker_epochs[each] += 1
            epoch = disk.epoch if self.rules.epochs_are_persisted else -1
            self.lives[each] = Life(ReplicaState(each, epoch, set(REPLICAS), set(REPLICAS)))

    def die(self, *brokers: int) -> None:
        for each in brokers:
            del self.lives[each]

    def lose_disk(self, broker: int) -> None:
        self.disks[broker] = Disk()

    def designate(self, leader: int, *isr: int) -> None:
        """The controller writes."""
        found = self.state
        self.state = VersionedState(
            found.state.designate(leader, isr, 1), found.partition_epoch + 1
        )

    def end_reassignment(self, leader: int, *replicas: int) -> None:
        """The controller writes; nobody has read of the topic yet."""
        self.designate(leader, *replicas)
        is_active = not self.rules.ends_begin_epochs
        ended = replace(
            self.state.state, active=is_active, reassigned=self.state.state.reassigned + 1
        )
        self.state = VersionedState(ended, self.state.partition_epoch)
        self.replicas = replicas

    def read(self, *brokers: int, found: VersionedState | None = None) -> None:
        """They read the state, or what it was (`found`), and do what they then do."""
        for number in brokers:
            life, disk = self.lives[number], self.disks[number]
            step = life.replica.observe(found or self.state)
            while step is not None:
                if isinstance(step, PersistEpoch):
                    disk.epoch = max(disk.epoch, step.epoch)
                    step = life.replica.confirm_epoch(step.epoch)
                elif isinstance(step, StateWrite):
                    answer = self.written(step)
                    step = life.replica.finish_activation(answer, partial(self._lead, number))
                    if life.replica.leader is not None:
                        epoch = life.replica.leader.epoch
                        self.checks.leads(f"{number}", epoch, disk.contents)

    def written(self, write: StateWrite) -> Answer:
        """A compare-and-set takes place."""
        for broker, epoch in write.in_sync.items():
            if self.broker_epochs[broker] != epoch:
                return BrokerReplaced(broker)
        if write.stands_on != self.state.partition_epoch:
            return Superseded(self.state)
        if not set(write.state.isr) <= set(self.replicas):
            raise Violation(f"{write} has others in sync than the replicas {self.replicas}")
        self.state = VersionedState(write.state, write.stands_on + 1)
        return self.state

    def _lead(self, number: int, found: VersionedState) -> LeaderState:
        disk = self.disks[number]
        return LeaderState(
            *(number, found, REPLICAS, disk.starts),
            log_end=disk.log_end,
            high_watermark=self.lives[number].high_watermark,
            deleted_before=0,
            min_in_sync=MIN_IN_SYNC,
            max_lag=MAX_LAG,
            now=0.0,
        )

    def leader(self, number: int) -> LeaderState:
        found = self.lives[number].replica.leader
        assert found is not None
        return found

    def write(self, number: int, *numbers: int) -> None:
        """Somebody produces at a broker that takes itself for the leader."""
        leader, disk, life = self.leader(number), self.disks[number], self.lives[number]
        for each in numbers:
            record = Record(leader.epoch, each)
            life.waiting.append((disk.log_end, record))
            disk.append([record])
        disk.durable = list(disk.records)
        self.advance(number)

    def propose(self, number: int, *live: int, now: float = 0.0) -> StateWrite:
        wanted = self.leader(number).propose(live, now)
        assert wanted is not None
        return wanted

    def advance(self, number: int) -> None:
        """The leader looks how far all have come, and acknowledges."""
        leader, life, disk = self.leader(number), self.lives[number], self.disks[number]
        self._move(number, leader.advance(disk.durable_end))
        while life.waiting and life.waiting[0][0] < life.high_watermark:
            offset, record = life.waiting.pop(0)
            copies = sum(
                each.durable[offset : offset + 1] == [record] for each in self.disks.values()
            )
            self.checks.acknowledged("producer", offset, record.value, offset)
            if copies < MIN_IN_SYNC:
                raise Violation(f"{record} is acknowledged with {copies} copies")

    def _move(self, number: int, offset: int) -> None:
        life = self.lives[number]
        offset = max(offset, life.high_watermark)
        role = life.replica.leader or life.replica.follower
        assert role is not None
        contents = self.disks[number].contents
        who = f"{number} in its life {id(life)}"
        self.checks.advanced(who, contents, life.high_watermark, offset, role.epoch)
        life.high_watermark = offset

    # -- fetches ------------------------------------------------------------------------------------

    def fetch(self, *followers: int, times: int = 3) -> None:
        """They fetch until they have all, and the leader knows."""
        for _ in range(times):
            for each in followers:
                follower = self.lives[each].replica.follower
                assert follower is not None
                answer = self.serve(follower.leader, self.ask(each))
                if answer is not None:
                    self.take(each, answer)

    def ask(self, number: int) -> Asked:
        follower, disk = self.lives[number].replica.follower, self.disks[number]
        assert follower is not None
        position = follower.position(disk.starts, disk.log_end)
        return Asked(number, self.broker_epochs[number], position)

    def serve(self, number: int, asked: Asked) -> Answered | None:
        """A fetch arrives at a broker. None: it is refused."""
        leader, disk = self.lives[number].replica.leader, self.disks[number]
        if leader is None:
            return None
        position = asked.position
        try:
            diverging = leader.handle_fetch(
                asked.replica, asked.broker_epoch, position, disk.log_end, 0.0
            )
        except FolkmootError:
            return None
        self.advance(number)
        records = disk.records[position.log_end :] if diverging is None else []
        return Answered(position, diverging, records, self.lives[number].high_watermark)

    def take(self, number: int, answer: Answered) -> None:
        life, disk = self.lives[number], self.disks[number]
        follower = life.replica.follower
        assert follower is not None
        todo = follower.handle_answer(
            *(answer.position, answer.diverging, disk.starts, disk.log_end)
        )
        if isinstance(todo, Truncate):
            self.checks.shortened(f"{number}", life.high_watermark, todo.offset)
            disk.truncate(todo.offset)
        elif isinstance(todo, Append):
            disk.append(answer.records)
            self._move(number, min(answer.high_watermark, disk.log_end))
        disk.durable = list(disk.records)
