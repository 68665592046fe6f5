"""One history: a cluster with its clients, while replicas move; some seconds of faults, and then peace."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from folkmoot.brokers.replication import partition, partitions, replica_fetcher
from folkmoot.brokers.server import event_loop
from folkmoot.brokers.storage.log import Log
from folkmoot.coordination import paths, topics
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.partition_states import PartitionState
from folkmoot.coordination.topic_config import FSYNC, PAGE_CACHE
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.network import broker_choice
from folkmoot.producers import sender
from folkmoot.protocol.errors import FolkmootError, UnknownProducer
from tests.simulation.checks import Violation
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.checks import (
    Record,
    ReplicationChecks,
    records_of,
    whole_records_of,
)
from tests.simulation.replication.clients import (
    SimulatedAdministrator,
    SimulatedConsumer,
    SimulatedProducer,
)
from tests.simulation.replication.coordination import PARTITION, TOPIC, Controller, IsrCheck
from tests.simulation.replication.disk import Disk, Disks
from tests.simulation.replication.network import Network
from tests.simulation.world import World

BROKERS = (1, 2, 3, 4)
REPLICAS = (1, 2, 3)
MIN_IN_SYNC = 2
UNREST = 3.0
FAULTS = 24
BETWEEN_BLACKOUTS = 0.5
PEACE_WITHIN = 30.0
LOOK = 0.1
MEMORY = Path("/dev/shm")
"""Where the logs lie, if there is such a thing: what a disk makes of it is simulated."""


class Forgiven(Exception):
    """Something was lost, and may have been: nothing more is judged."""


class ReplicationHistory:
    """Everything in it follows from the seed, and from whether the power fails again and again."""

    def __init__(self, seed: int, *, blackouts: int = 0, page_cache: bool = False) -> None:
        """So many `blackouts`, in which all machines lose their power at once, besides other faults; with
        `page_cache` that is the topic's durability, else it is by chance."""
        self.world = World(seed)
        self.world.watchers.append(IsrCheck(self._leads_alone))
        self._blackouts = blackouts
        self.checks = ReplicationChecks()
        self.network = Network(self.world)
        self.disks = Disks()
        self.brokers: dict[int, Broker] = {}
        self.controllers: list[Controller] = []
        self._disk: dict[int, Disk] = {}
        self._replaced: Broker | None = None
        self._values = count(1)
        self._guarded, self._page_cache = False, page_cache
        self._traffic = True
        self._rotten: dict[int, dict[int, Record]] = {}
        """What has rotted on the disk of a broker, by offset: what was there."""
        self._unrest = UNREST + blackouts * BETWEEN_BLACKOUTS

    def run(self) -> None:
        """Raises Violation."""
        at = MEMORY if MEMORY.is_dir() else None
        directory = Path(tempfile.mkdtemp(prefix="folkmoot-", dir=at))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.enter_context(self._in_this_world())
            stack.callback(self._end)
            self._begin(directory)
            with suppress(Forgiven):
                self.world.run(self.world.now + self._unrest)
                self._make_peace()

    def _begin(self, directory: Path) -> None:
        world, random = self.world, self.world.random
        world.lag = random.choice((0.0, 0.3))
        self.network.loss = random.choice((0.0, 0.002, 0.01))
        self._guarded = random.random() < 0.5
        self._page_cache |= random.random() < 0.3 and not self._blackouts
        self._admin = world.zookeeper.connect()
        durability = PAGE_CACHE if self._page_cache else FSYNC
        config = {"durability": durability, "min_in_sync": f"{MIN_IN_SYNC}"}
        topic = TopicInfo(PARTITION.topic_id, [list(REPLICAS)], config)
        self._ask(ensure(paths.topic(TOPIC), msgspec.json.encode(topic)))
        for number in BROKERS:
            self._disk[number] = Disk(directory / f"{number}")
            self._start(number)
        self.controllers = [Controller(world, number) for number in (1, 2)]
        for each in self.controllers:
            each.restless = random.choice((0.0, 0.02, 0.1))
        self._add_clients()
        faults = [random.choice(_FAULTS) for _ in range(random.randint(3, FAULTS))]
        faults += [ReplicationHistory._power_cut] * self._blackouts
        faults += [ReplicationHistory._delete_records] * random.choice((0, 0, 1, 4))
        faults += [ReplicationHistory._seek] * random.choice((0, 0, 1, 3))
        if not self._page_cache:
            rare = random.choice(
                ([], [ReplicationHistory._take_over], [ReplicationHistory._rot] * 4)
            )
            faults += rare
        if self._page_cache:
            faults += [ReplicationHistory._change_durability] * random.choice((0, 0, 1, 2))
        for fault in faults:
            world.after(random.uniform(0.5, self._unrest), partial(fault, self))

    def _add_clients(self) -> None:
        world, number = self.world, count()

        def acknowledged(name: str, value: int, offset: int) -> None:
            world.seen["acknowledged"] += 1
            self.checks.acknowledged(name, next(number), value, offset)

        self.producers = [
            SimulatedProducer(
                *(world, self.network, name, partial(next, self._values)),
                partial(acknowledged, name),
                acks="all",
            )
            for name in ("p1", "p2")
        ]
        # Its records may be lost: nobody but readers takes note of them.
        hasty = SimulatedProducer(
            *(world, self.network, "p3", partial(next, self._values)),
            lambda value, offset: world.seen.update(["answered by the leader"]),
            acks=1,
        )
        self.consumers = [
            SimulatedConsumer(world, self.network, name, self.checks) for name in ("c1", "c2")
        ]
        self.administrator = SimulatedAdministrator(world, self.network, "a1", self.checks.deleted)
        for each in (*self.producers, hasty):
            world.after(0.1, partial(self._produce, each))

    def _produce(self, producer: SimulatedProducer) -> None:
        random = self.world.random
        if self._traffic:
            producer.send(random.choice((1, 1, 3)))
            self.world.after(random.uniform(0.01, 0.12), partial(self._produce, producer))

    @contextmanager
    def _in_this_world(self) -> Iterator[None]:
        """Clocks and chance are this history's, and what takes seconds takes less."""
        clock = SimpleNamespace(
            monotonic=self.world.clock, time_ns=lambda: round(self.world.now * 1e9)
        )
        with pytest.MonkeyPatch.context() as patch, self.disks.watched():
            # It lies in a lock's file, of which a power cut leaves some.
            patch.setattr(os, "getpid", lambda: 1)
            patch.setattr(event_loop, "time", clock)
            patch.setattr(sender, "time", clock)
            patch.setattr(broker_choice, "random", self.world.random)
            patch.setattr(partition, "MAX_LAG", 0.5)
            patch.setattr(partitions, "LOOK_AFTER", 0.1)
            patch.setattr(partition, "DISK_AGAIN_AFTER", 0.2)
            patch.setattr(partitions, "DISK_AGAIN_AFTER", 0.2)
            patch.setattr(partition, "DELETED_WITHIN", 0.4)
            patch.setattr(replica_fetcher, "TIMEOUT", 0.4)
            patch.setattr(replica_fetcher, "MAX_WAIT", 0.2)
            yield

    def _end(self) -> None:
        for broker in (*self.brokers.values(), self._replaced):
            if broker is not None and broker.running:
                broker.stop(guarded=False)
        for disk in self._disk.values():
            disk.close()
        if self._replaced is not None:
            self._replaced.disk.close()

    # -- peace ----------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        """All faults end: all replicas come back in sync, records are acknowledged and read, the logs
        are equal, and nobody has seen anything wrong."""
        world = self.world
        world.faults, world.lag, self.network.loss = False, 0.0, 0.0
        self.network.cut.clear()
        for disk in self._disk.values():
            disk.is_full = disk.fails_to_flush = False
        for controller in self.controllers:
            controller.restless = 0.0
        self._until(partial(self._trouble, world.seen["acknowledged"]))
        self._traffic = False
        self._until(self._unequal)
        self.checks.at_rest({number: log for number, log in self._logs().items() if log})

    def _until(self, trouble: Callable[[], str]) -> None:
        world = self.world
        end = world.now + PEACE_WITHIN
        while said := trouble():
            if world.now > end:
                raise Violation(f"no peace: {said}")
            world.run(world.now + LOOK)

    def _trouble(self, acknowledged: int) -> str:
        replaced = self._replaced
        if replaced is not None and replaced.running:
            replaced.stop(guarded=True)
            return f"{replaced.name} was replaced, and is there still"
        for number in BROKERS:
            broker = self.brokers[number]
            if not broker.running:
                self._start(number)
                return f"{number} is down"
            if broker.paused is not None:
                broker.resume()
                return f"{number} was stopped"
        if said := self._alone():
            return said
        leaders = [each.replica.leader for each in self.brokers.values() if each.replica]
        led = [each for each in leaders if each is not None]
        if len(led) != 1:
            return f"{len(led)} lead"
        if self._topic.reassignments:
            return f"{self._topic} is being moved"
        for number in list(self._rotten):
            self.brokers[number].scrub()
            self._forget_rot(number)
        if self._rotten:
            return f"what has rotted is not copied anew yet: {self._rotten}"
        if set(led[0].isr) != set(self._topic.partitions[0]):
            return f"in sync are {led[0].isr}"
        if self.world.seen["acknowledged"] <= acknowledged:
            return "nothing is acknowledged"
        return ""

    def _alone(self) -> str:
        """Forgiven: what only the disk that was replaced is known to have is out of reach."""
        replaced = self._replaced
        if replaced is None or self._in_sync != {replaced.broker_id}:
            return ""
        replica = self.brokers[replaced.broker_id].replica
        if replica is None:
            return f"{replaced.broker_id} has no replica yet"
        if not replica.state.may_lead:
            self.world.seen["alone with another disk"] += 1
            raise Forgiven
        return ""

    def _unequal(self) -> str:
        if said := self._alone():
            return said
        for producer in self.producers:
            for error in producer.failed:
                # A replica that was copied since knows no producer whose records were all deleted.
                if not (self.checks.to_be_deleted and isinstance(error, UnknownProducer)):
                    raise Violation(f"{producer.name}: {error}")
            if producer.unanswered:
                return f"{producer.name} waits for {producer.unanswered} answers"
        held = {number for number, log in self._logs().items() if log}
        if held != set(self._topic.partitions[0]):
            return f"{sorted(held)} hold replicas, by the topic {self._topic.partitions[0]}"
        ends = {log.log_end for log in self._logs().values() if log}
        committed = {log.high_watermark for log in self._logs().values() if log}
        if ends != committed or len(ends) > 1:
            return f"the logs end at {ends}, committed are {committed}"
        [end] = ends
        for consumer in self.consumers:
            if consumer.position < end:
                return f"{consumer.name} has read {consumer.position} of {end}"
        return ""

    @property
    def _topic(self) -> TopicInfo:
        node = self.world.versions[-1][paths.topic(TOPIC)]
        return msgspec.json.decode(node.data, type=TopicInfo)

    @property
    def _in_sync(self) -> set[int]:
        node = self.world.versions[-1].get(paths.partition_state(*PARTITION))
        return set() if node is None else {*msgspec.json.decode(node.data, type=PartitionState).isr}

    def _ask(self, recipe: Recipe[Any]) -> None:
        """By somebody whose connection never breaks. What is refused is not done."""
        outcome = None
        try:
            while True:
                operation = advance(recipe, outcome)
                outcome, _ = self.world.execute("admin", self._admin, operation, None)
        except (StopIteration, FolkmootError):
            pass

    def _logs(self) -> dict[int, Log | None]:
        return {number: broker.log for number, broker in self.brokers.items()}

    # -- processes ------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        self.brokers[number] = self._life(number, self._disk[number])

    def _life(self, number: int, disk: Disk) -> Broker:
        disk.fails_to_flush = False
        return Broker(self.world, self.network, self.disks, disk, number, self._look, self._died)

    def _died(self, broker: Broker) -> None:
        """By itself, since a flush has failed: as with its power, nobody knows what the disk has."""
        self._note_what_rot_hides(broker)
        if self._may_lose(broker):
            broker.disk.power_cut(self.world.random, reboots=False)
        self._restart_later(broker)

    def _may_lose(self, broker: Broker) -> bool:
        """Whether it may lose its page cache, and nothing is lost: another one in sync has not."""
        others = self._in_sync - {broker.broker_id}
        return not self._page_cache or any(self._disk[each].is_trusted for each in others)

    def _leads_alone(self, number: int) -> None:
        """Right when that is written: who stands still then, and is replaced, may never look like a leader,
        and yet what the others had does not count any more."""
        replica = self.brokers[number].replica
        if self._page_cache and replica is not None and not replica.state.may_lead:
            self.world.seen["alone without its page cache"] += 1
            raise Forgiven

    def _look(self, broker: Broker) -> None:
        """After each turn of a broker's event loop."""
        log, replica = broker.log, broker.replica
        broker.sees(log)
        if log is None or replica is None:
            return
        if log.high_watermark < broker.committed and log.is_uncommit_pending:
            self._gives_up(broker)
        elif log.high_watermark < broker.committed and log.is_incomplete:
            broker.begins_anew()  # its leader had it cut, and rot lay in front of that
        life = f"{broker.broker_id} in its life {broker.life}"
        contents = partial(self._records_of, broker)
        leader, follower = replica.state.leader, replica.state.follower
        if leader is not None and leader.epoch != broker.led:
            self.world.seen["activation"] += 1
            epoch = leader.epoch
            self.world.note(f"{broker.broker_id} leads in epoch {epoch}")
            self.checks.leads(life, epoch, contents, log.log_start)
        broker.led = None if leader is None else leader.epoch
        if log.log_end < broker.log_end:
            self.world.seen["truncation"] += 1
            self.world.note(f"{broker.broker_id} cut {broker.log_end} to {log.log_end}")
            self.checks.shortened(f"{broker.broker_id}", log.high_watermark, log.log_end)
        broker.log_end = log.log_end
        role = leader or follower
        if role is not None or log.high_watermark != broker.committed:
            epoch = replica.state.epoch if role is None else role.epoch
            self.checks.advanced(life, contents, broker.committed, log.high_watermark, epoch)
        broker.committed = log.high_watermark

    def _note_what_rot_hides(self, broker: Broker) -> None:
        """A life ends, and the index with it: the next one may not find what was appended behind rot.

        Rot is in a segment that is closed, but a cut to that segment's end has the log append to it again.
        """
        rotten = self._rotten.get(broker.broker_id)
        if rotten and broker.log is not None:
            whole = whole_records_of(broker.log)
            rotten.update({each: whole[each] for each in whole if each > min(rotten)})
            self.checks.rotten.update(rotten)

    def _forget_rot(self, number: int) -> None:
        """What is whole again, or gone, is not rotten any more."""
        log, rotten = self.brokers[number].log, self._rotten.pop(number)
        whole = {} if log is None else whole_records_of(log)
        start = 1 << 62 if log is None else log.log_start
        if left := {at: rotten[at] for at in rotten if at >= start and at not in whole}:
            self._rotten[number] = left

    def _gives_up(self, broker: Broker) -> None:
        """A replica is about to be cut at damage: not while anybody counts on it."""
        self.world.seen["cut at damage"] += 1
        if broker.broker_id in self._in_sync:
            raise Violation(f"{broker.broker_id} is cut, and counts as in sync")
        broker.begins_anew()

    def _records_of(self, broker: Broker, offset: int, end: int) -> list[tuple[int, Record]]:
        """What lies between two offsets, or lay there before it has rotted."""
        log = broker.log
        assert log is not None
        rotten = self._rotten.get(broker.broker_id)
        if rotten is None:
            return records_of(log, offset, end)
        first, last = max(offset, log.log_start), min(end, log.log_end)
        found = sorted({**rotten, **whole_records_of(log)}.items())
        return [each for each in found if first <= each[0] < last]

    # -- faults ---------------------------------------------------------------------------------------

    def _rot(self) -> None:
        """A bit flips in a record that is committed, on one replica in sync of several, at a random offset.
        It is found some time later, or by who reads it."""
        if not self.world.faults:
            return
        random = self.world.random
        number = random.choice(sorted(self._in_sync or {0}))
        broker = self.brokers.get(number)
        log = None if broker is None else broker.log
        is_ready = broker is not None and broker.running and log is not None and log.segments
        count = 0 if log is None else min(len(self.checks.committed), log.log_end)
        if broker is None or log is None or not is_ready or log.log_start >= count:
            return
        is_alone = len(self._in_sync) < 2 or bool(self._rotten.keys() - {number})
        if is_alone or not log.queue.is_idle or broker.disk.is_full or log.failed:
            self.world.after(0.2, self._rot)
            return
        with self.disks.of(broker.disk):  # who looks for what is left finds all of a sealed segment
            if log.segments[-1].size:
                log.roll()
                broker.logs.dirty[log] = None
        offset = random.randrange(log.log_start, count)
        segment = log.segment_at(offset)
        if segment.end_offset > count:
            # What others may lack would stop them for good (docs/guarantees.md).
            self.world.after(0.2, self._rot)
            return
        before = whole_records_of(log)
        for header, position in list(segment.reader().headers()):
            if header.base_offset <= offset < header.next_offset:
                self._flip(segment.path, position + random.randrange(header.length))
        after = whole_records_of(log)
        lost = [each for each in before if each not in after]
        if lost:
            # A later life may not find what lies behind it, where the index has died with this one.
            behind = range(min(lost), segment.end_offset)
            rotten = self._rotten.setdefault(number, {})
            rotten.update({each: before[each] for each in behind if each in before})
            self.checks.rotten.update(rotten)
            self.world.seen["fault rot"] += 1
            self.world.note(f"{number} has lost {sorted(lost)} to rot")
            found = partial(self._report, number, offset)
            self.world.after(random.uniform(0.0, 1.0), found)

    def _flip(self, path: Path, position: int) -> None:
        with path.open("r+b", buffering=0) as file:
            byte = os.pread(file.fileno(), 1, position)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.world.random.randrange(8)]), position)

    def _report(self, number: int, offset: int) -> None:
        broker = self.brokers[number]
        log = broker.log
        if broker.running and log is not None and log.is_open:
            if log.log_start <= offset < log.log_end and broker.paused is None:
                broker.check_reported(log, offset)

    def _victim(self) -> Broker:
        """A leader, more often than not."""
        random = self.world.random
        leaders = [each for each in self.brokers.values() if each.led is not None]
        return random.choice(
            leaders if leaders and random.random() < 0.6 else [*self.brokers.values()]
        )

    def _kill(self) -> None:
        """SIGKILL, or the machine loses its power: only where the topic's durability is for that."""
        broker, random = self._victim(), self.world.random
        if broker.running:
            self._die(broker, power=random.random() < 0.5 and self._may_lose(broker))

    def _die(self, broker: Broker, *, power: bool) -> None:
        self.world.seen["fault power" if power else "fault kill"] += 1
        self.world.note(f"{broker.broker_id} dies{' with its power' if power else ''}")
        self._note_what_rot_hides(broker)
        broker.stop(guarded=self._guarded and not power)
        if power:
            broker.disk.power_cut(self.world.random)
        self._restart_later(broker)

    def _restart_later(self, broker: Broker) -> None:
        def restart() -> None:
            if self.brokers[broker.broker_id] is broker and not broker.running:
                self._start(broker.broker_id)
            elif self._replaced is broker and self.world.faults:
                self._replaced = self._life(broker.broker_id, broker.disk)

        self.world.after(self.world.random.choice((0.02, 0.2, 1.5)), restart)

    def _power_cut(self) -> None:
        """All machines at once."""
        if not self._page_cache:
            self.world.seen["fault power of all"] += 1
            for broker in self.brokers.values():
                if broker.running:
                    self._die(broker, power=True)

    def _pause(self) -> None:
        broker = self._victim()
        if broker.running and broker.paused is None:
            self.world.seen["fault pause"] += 1
            self.world.note(f"{broker.broker_id} stands still")
            broker.pause()
            if self.world.random.random() < 0.5:
                self._expire(broker)
            self.world.after(self.world.random.uniform(0.05, 1.2), broker.resume)

    def _take_over(self) -> None:
        """A broker stands still beyond its session, and another machine with an empty disk gets its id. It
        goes on then, as if nothing had been, and is started again when it has ended: while the other one
        is down the id is its own again."""
        broker = self._victim()
        number = broker.broker_id
        if not broker.running or broker.paused is not None or not self._in_sync - {number}:
            return
        self.world.seen["fault takeover"] += 1
        self.world.note(f"{number} stands still, and is replaced")
        broker.pause()
        self._expire(broker)
        self._replaced = broker
        self._disk[number] = Disk(broker.disk.data.with_name(f"{number}b"))
        self._start(number)
        self.world.after(self.world.random.uniform(0.05, 1.2), broker.resume)

    def _end_session(self) -> None:
        """The broker goes on: a zombie, until it hears of it."""
        broker = self._victim()
        if broker.running:
            self.world.seen["fault session"] += 1
            self._expire(broker)

    def _expire(self, broker: Broker) -> None:
        """It hears of it by its next ping, if not before."""
        line = broker.watcher.line
        line.expire_unheard()
        self.world.after(self.world.random.uniform(0.1, 1.0), broker.soon(line.lose))

    def _break_line(self) -> None:
        broker = self._victim()
        if broker.running:
            self.world.seen["fault line"] += 1
            broker.watcher.line.break_off(self.world.random.choice((0.01, 0.2, 1.0)))

    def _ambush(self) -> None:
        """The answer to the next write is lost, or the write."""
        broker = self._victim()
        if broker.running:
            self.world.seen["fault ambush"] += 1
            line = broker.watcher.line
            line.ambush = partial(line.break_off, self.world.random.choice((0.01, 0.2, 1.0)))

    def _part(self) -> None:
        """A broker is cut off from others, or from clients, in both directions or in one."""
        random, one = self.world.random, self._victim().name
        others = [each.name for each in self.brokers.values() if each.name != one]
        if random.random() < 0.3:
            others = ["p1", "p2", "p3", "c1", "c2", "a1"]
            self.world.seen["fault cut from clients"] += 1
        else:
            self.world.seen["fault cut"] += 1
        both = random.random() < 0.6
        for other in random.sample(others, random.randint(1, len(others))):
            pairs = [(one, other), (other, one)]
            some = pairs if both else [random.choice(pairs)]
            cut = self.network.cut
            cut.update(some)
            self.world.note(f"cut off: {some}")
            self.world.after(random.uniform(0.1, 1.5), partial(cut.difference_update, some))

    def _fill_disk(self) -> None:
        """What is appended meanwhile is refused, and tried again."""
        broker = self._victim()
        self.world.seen["fault full disk"] += 1
        broker.disk.is_full = True
        self.world.note(f"the disk of {broker.broker_id} is full")
        self.world.after(
            self.world.random.uniform(0.05, 1.0), partial(setattr, broker.disk, "is_full", False)
        )

    def _fail_flush(self) -> None:
        """The next flush fails: the broker ends, with the page cache's word for what the disk has."""
        broker = self._victim()
        if broker.running:
            self.world.seen["fault EIO"] += 1
            broker.disk.fails_to_flush = True

    def _delete_records(self) -> None:
        """Some of those that are committed."""
        offset = self.world.random.randint(0, len(self.checks.committed))
        self.world.seen["records to be deleted"] += 1
        self.world.note(f"what lies before {offset} is to be deleted")
        self.checks.to_be_deleted = max(self.checks.to_be_deleted, offset)
        self.administrator.delete(offset)

    def _seek(self) -> None:
        """A consumer goes on at some time before now."""
        moment = self.world.now - self.world.random.uniform(0.0, self._unrest)
        self.world.note(f"c2 seeks {moment:.4f}")
        self.consumers[-1].seek(round(moment * 1000))

    def _change_durability(self) -> None:
        """What was acknowledged before may be in page caches alone, also once the topic is not for that."""
        durability = PAGE_CACHE if self._topic.config["durability"] == FSYNC else FSYNC
        self.world.seen[f"changed to {durability}"] += 1
        self.world.note(f"durability is {durability} from here on")
        self._ask(topics.configure(TOPIC, {"durability": durability}))

    def _reassign(self) -> None:
        """Its replicas move to other brokers, more or fewer, or what moves is taken back."""
        random = self.world.random
        if self._topic.reassignments and random.random() < 0.5:
            self.world.note("a reassignment is cancelled")
            self._ask(reassignments.cancel(TOPIC))
            return
        target = random.sample(BROKERS, random.randint(2, 4))
        before = self._topic
        self._ask(reassignments.start(TOPIC, {PARTITION.partition: target}))
        if self._topic != before:
            self.world.seen["fault reassignment"] += 1
            self.world.note(f"to be moved to {target}")

    def _lose_controller(self) -> None:
        self.world.seen["fault controller"] += 1
        controller = self.world.random.choice(self.controllers)
        controller.line.expire_unheard()


_FAULTS: tuple[Callable[[ReplicationHistory], None], ...] = (
    *[ReplicationHistory._kill] * 2,
    *[ReplicationHistory._pause] * 2,
    *[ReplicationHistory._part] * 3,
    *[ReplicationHistory._reassign] * 3,
    ReplicationHistory._end_session,
    ReplicationHistory._break_line,
    ReplicationHistory._ambush,
    ReplicationHistory._power_cut,
    ReplicationHistory._fill_disk,
    ReplicationHistory._fail_flush,
    ReplicationHistory._lose_controller,
)
FAULT_NAMES = (
    *("kill", "power", "power of all", "pause", "session", "line", "ambush", "cut"),
    *("cut from clients", "full disk", "EIO", "controller", "reassignment", "takeover", "rot"),
)
