"""Three replicas: what `acks=all` costs, how long writes wait when brokers die, and what rest costs.

Folkmoot and Kafka each have three brokers on this machine, topics of three replicas, two of which must be
in sync. Writers go on while a broker is killed or stopped: what is told is how long after that the first
record that was sent later was acknowledged, in the last of the partitions that broker led.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import WORK_IN, Context, Estimate, Sample, cell, rate_of, settle
from benchmarks.measuring import cpu_seconds
from benchmarks.peers.clusters import BROKERS, Cluster, FolkmootCluster, KafkaCluster
from benchmarks.peers.kafka import KafkaPeer
from benchmarks.programs import Program
from benchmarks.results import Cell, Results, Target
from folkmoot.brokers.storage.files.cluster_facts import topic_in
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.zookeeper.execute import execute

NAME: Final = "replication"
TITLE: Final = "Replication: acks=all, and brokers that die"
ESTIMATE: Final = Estimate(seconds=420, per_round=90, quick_seconds=200, disk=25e9)

OURS: Final = "Folkmoot"
ALONE: Final = "Folkmoot, its guardian killed, too"
KAFKA: Final = "Kafka"
SEND: Final = "Folkmoot send()"
COLUMNS: Final = "Folkmoot send_batch(), lists"
CONFLUENT: Final = "confluent-kafka produce()"
PARTITIONS: Final = 12
RATE: Final = 50_000
CALM_RATE: Final = 20_000
BACKGROUND_RATE: Final = 5_000
INTERVAL: Final = 0.02
"""Each partition of the writers' topic gets a record so often; of many partitions ten times as rarely."""
REST: Final = 1.0
PATIENCE: Final = 40.0
SESSION: Final = 6.0
KILLS_A_ROUND: Final = 4
BEHIND_BYTES: Final = {"full": 10e9, "quick": 1e9}
ROOM: Final = 3
"""So many times what a follower lacks is to be free on the disk: leader, follower, and the copy beside."""
THROTTLE: Final = 25_000_000
THROUGHPUT: Final = "acks=all, page cache, 100 B, 12 partitions, zstd"
FSYNC: Final = "acks=all, fsync, 100 B, 12 partitions, zstd"
KILL: Final = "the leader of some partitions is killed"
STOP: Final = "the leader of some partitions is stopped in order"
FIRST: Final = "first partition, s"
SILENT: Final = "partitions not writable in time"

Break = Callable[[int], float]
"""Does something to a broker; → when."""


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)
    _Cases(context, results).run()
    results.notes.append(
        "Three brokers each on one machine; replicas 3, min_in_sync 2; clients and brokers share the "
        "processors. Seconds are counted from the signal until a record sent after it is acknowledged "
        "in the last partition that the broker led; every partition gets one each "
        f"{INTERVAL * 1000:g} ms (of many partitions each {INTERVAL * 10_000:g} ms). Kafka's broker sessions "
        "last 9 s, Folkmoot's 6 s, which count where no guardian ends them."
    )
    return results


class _Cases:
    """The cases of a run, one after the other, on clusters that live as long."""

    def __init__(self, context: Context, results: Results) -> None:
        self.context = context
        self.results = results
        self.scale = context.scale
        self.clusters: dict[str, Cluster] = {}
        self.topics = 0

    def run(self) -> None:
        context = self.context
        is_smoke = self.scale.name == "smoke"
        many = {"smoke": 20, "quick": 200}.get(self.scale.name, 1_000)
        with self._running(OURS, FolkmootCluster(context.work / "folkmoot-3")) as ours:
            if context.has("kafka"):
                peer = context.peers["kafka"]
                assert isinstance(peer, KafkaPeer)
                theirs = KafkaCluster(context.work / "kafka-3", peer.python, peer.jars)
                with self._running(KAFKA, theirs):
                    self._beside_each_other(many)
            else:
                self._beside_each_other(many)
            assert isinstance(ours, FolkmootCluster)
            self._try(partial(self.fsync, ours))
            self._try(partial(self.controller, ours, many))
            if not is_smoke:
                self._try(partial(self.catching_up, ours))
                self._try(
                    partial(self.quiet, ours, 1_000 if self.scale.name == "quick" else 10_000)
                )

    def _beside_each_other(self, many: int) -> None:
        self._try(self.throughput)
        self._try(self.fsync_latency)
        self._try(self.kills)
        self._try(partial(self.many, many))

    @contextmanager
    def _running(self, name: str, cluster: Cluster) -> Iterator[Cluster]:
        with cluster:
            self.clusters[name] = cluster
            yield cluster
        del self.clusters[name]

    def _try(self, case: Callable[[], None]) -> None:
        name = getattr(case, "func", case).__name__
        self.context.attempt(name, case)

    def _topic(self, cluster: Cluster, partitions: int, *, fsync: bool = False) -> str:
        self.topics += 1
        topic = f"replicated-{self.topics}"
        cluster.create(topic, partitions, fsync=fsync)
        return topic

    def _target(self, text: str, ours: Cell | None, **more: Any) -> None:
        if ours is not None:
            figure = max(ours.values) if ours.better == "lower" else ours.median
            spread = (min(ours.values), max(ours.values))
            self.results.targets.append(
                Target(
                    text=text,
                    figure=figure,
                    unit=ours.unit,
                    better=ours.better,
                    spread=spread,
                    **more,
                )
            )

    # -- records a second ---------------------------------------------------------------------------

    def throughput(self) -> None:
        contenders = {
            SEND: partial(self._rate, OURS, "send"),
            COLUMNS: partial(self._rate, OURS, "columns"),
        }
        if KAFKA in self.clusters:
            contenders[CONFLUENT] = partial(self._rate, KAFKA, "produce")
            self._work_in()
        self.results.cells += self.context.alternate(THROUGHPUT, "records/s", contenders)
        theirs = self.results.find(THROUGHPUT, CONFLUENT)
        for name, times in ((SEND, 1.5), (COLUMNS, 4.0)):
            beside = {"rival": CONFLUENT, "beside": theirs.median} if theirs is not None else {}
            text = f"acks=all, {name.split()[1]}"
            self._target(text, self.results.find(THROUGHPUT, name), times=times, **beside)

    def _work_in(self) -> None:
        """Have Kafka's servers compile what they will be measured at, as elsewhere."""
        cluster, records = self.clusters[KAFKA], self.context.records.get("small", WORK_IN)
        topic = self._topic(cluster, PARTITIONS)
        told: dict[str, Any] = {
            "topic": topic,
            "records": str(records.path),
            "count": records.count,
            "warm": 0,
        }
        cluster.client("produce", acks="all", compression="zstd", **told).run({})
        cluster.delete_topic(topic)

    def _rate(self, name: str, how: str, *, fsync: bool = False) -> Sample:
        cluster = self.clusters[name]
        aimed = {"send": 500_000, "columns": 1_000_000, "produce": 400_000}[how]
        records = self.context.records.get("small", max(20_000, int(aimed * self.scale.seconds)))
        topic = self._topic(cluster, PARTITIONS, fsync=fsync)
        told: dict[str, Any] = {
            "topic": topic,
            "records": str(records.path),
            "count": records.count,
            "how": how,
        }
        program = cluster.client("produce", acks="all", compression="zstd", warm=10_000, **told)
        sample = rate_of(program.run(cluster.processes()))
        cluster.delete_topic(topic)
        facts = {name: sample.facts[name] for name in ("client CPU", "server CPU")}
        return Sample(value=sample.value, facts=facts)

    def fsync(self, cluster: FolkmootCluster) -> None:
        measure = {COLUMNS: partial(self._rate, OURS, "columns", fsync=True)}
        self.results.cells += self.context.alternate(FSYNC, "records/s", measure)
        before, now = (self.results.find(each, COLUMNS) for each in (THROUGHPUT, FSYNC))
        if before is not None and now is not None:
            beside = {"rival": "page cache", "beside": before.median}
            self._target("acks=all with fsync, send_batch()", now, times=0.7, **beside)

    def fsync_latency(self) -> None:
        """Of each record, from when it was due; Kafka's topic has `flush.messages=1`."""
        case = f"acks=all, fsync, until acknowledged at {RATE:,} records/s, linger 5 ms"
        contenders = {
            name: partial(self._latency, cluster, RATE) for name, cluster in self.clusters.items()
        }
        cells = self.context.alternate(case, "p99 ms", contenders)
        self.results.cells += [replace(each, better="lower") for each in cells]
        self._target(case, self.results.find(case, OURS), wanted=20.0, **self._beside(case))

    def _latency(self, cluster: Cluster, rate: int) -> Sample:
        topic = self._topic(cluster, PARTITIONS, fsync=True)
        seconds = 2 * self.scale.seconds if self.scale.name != "smoke" else 0.5
        with self._paced(cluster, topic, rate, seconds) as program:
            before = sum(map(cpu_seconds, cluster.processes().values()))
            told = program.wait_done()
            used = sum(map(cpu_seconds, cluster.processes().values())) - before
        cluster.delete_topic(topic)
        lags = {name: (lag - told["begun"]) / 1e6 for name, lag in told["lags"].items()}
        p99 = lags.pop("p99")
        facts = {f"{name} ms": lag for name, lag in lags.items()}
        return Sample(value=p99, facts={**facts, "server CPU": used / told["records"] * 1e6})

    @contextmanager
    def _paced(self, cluster: Cluster, topic: str, rate: int, seconds: float) -> Iterator[Program]:
        writer = "folkmoot_writer" if cluster is self.clusters[OURS] else "kafka_writer"
        count = round(rate * seconds)
        told = {"topic": topic, "count": count, "rate": rate, "size": 100, "linger": 0.005}
        module = f"benchmarks.clients.{writer}"
        with cluster.client("paced", module=module, warm=count // 4, **told) as program:
            program.wait_ready()
            settle()
            program.go()
            yield program

    # -- brokers that die ---------------------------------------------------------------------------

    def kills(self) -> None:
        """Of a broker that leads a third of some partitions; then the same in order."""
        is_full = self.scale.name == "full"
        ours = KILLS_A_ROUND * self.scale.rounds if is_full else 3
        for name, cluster in list(self.clusters.items()):
            topic = self._topic(cluster, PARTITIONS, fsync=name == OURS)
            with self._writer(name, cluster, topic, PARTITIONS, INTERVAL) as writer:
                some = partial(self._breaks, cluster, writer, topic)
                rounds = ours if name == OURS else self.scale.rounds
                self._add(KILL, name, "s", some(cluster.kill_broker, rounds))
                self._add(STOP, name, "s", some(cluster.leave, rounds))
                if name == OURS and self.scale.name != "smoke":
                    alone = partial(cluster.kill_broker, guardian=True)
                    self._add(KILL, ALONE, "s", some(alone, self.scale.rounds))
            cluster.delete_topic(topic)
        for text, case, name, wanted in (
            ("leader killed, until writable", KILL, OURS, 0.7),
            ("leader and guardian killed, until writable", KILL, ALONE, SESSION + 1),
            ("leader stopped in order, until writable", STOP, OURS, 0.2),
        ):
            self._target(text, self.results.find(case, name), wanted=wanted, **self._beside(case))

    def many(self, partitions: int) -> None:
        """A broker that leads all of many partitions is killed; of Kafka's a third, since its controllers
        need two of the three nodes."""
        case = f"a broker that leads {partitions:,} partitions is killed"
        for name, cluster in list(self.clusters.items()):
            topic = self._topic(cluster, partitions)
            kills: dict[str, Break] = {name: cluster.kill_broker}
            if name == OURS and self.scale.name != "smoke":
                kills[ALONE] = partial(cluster.kill_broker, guardian=True)
            with self._writer(name, cluster, topic, partitions, 10 * INTERVAL) as writer:
                for whose, kill in kills.items():
                    times = self.scale.spare_rounds
                    leads_all = name == OURS
                    taken = self._breaks(cluster, writer, topic, kill, times, leads_all=leads_all)
                    self._add(case, whose, "s", taken)
            cluster.delete_topic(topic)
        beside = self._beside(case)
        for text, name, wanted in (
            (case, OURS, 3.0),
            (f"{case}, its guardian, too", ALONE, SESSION + 3),
        ):
            self._target(
                f"{text}: all writable", self.results.find(case, name), wanted=wanted, **beside
            )

    def controller(self, cluster: FolkmootCluster, partitions: int) -> None:
        """The broker that leads and is the controller is killed, while records come to another topic."""
        case = f"controller and leader killed together, {partitions:,} partitions, under load"
        topic, other = self._topic(cluster, partitions), self._topic(cluster, PARTITIONS)
        taken = []
        for _ in range(self.scale.spare_rounds):
            victim = cluster.controller()
            with (
                self._writer(OURS, cluster, topic, partitions, 10 * INTERVAL) as writer,
                self._paced(cluster, other, BACKGROUND_RATE, PATIENCE),
            ):
                kill = cluster.kill_broker
                taken += self._breaks(
                    cluster, writer, topic, kill, 1, victim=victim, leads_all=True
                )
        self._add(case, OURS, "s", taken)
        self._target(f"{case}: all writable", self.results.find(case, OURS), wanted=4.0)
        for each in (topic, other):
            cluster.delete_topic(each)

    @contextmanager
    def _writer(
        self, name: str, cluster: Cluster, topic: str, partitions: int, interval: float
    ) -> Iterator[Program]:
        module = f"benchmarks.clients.{'folkmoot' if name == OURS else 'kafka'}_writer"
        told = {"topic": topic, "partitions": partitions, "interval": interval}
        with cluster.client("write", module=module, **told) as program:
            program.wait_ready()
            yield program

    def _breaks(
        self,
        cluster: Cluster,
        writer: Program,
        topic: str,
        do: Break,
        times: int,
        victim: int | None = None,
        leads_all: bool = False,
    ) -> list[Sample]:
        """Break a leader, and restart it, some times; each time all replicas are in sync before.

        `leads_all`: the others were stopped and started before, so that it leads all partitions.
        """
        samples = []
        for _ in range(times):
            broken = cluster.leaders(topic)[0] if victim is None else victim
            others = [each for each in range(1, BROKERS + 1) if leads_all and each != broken]
            for do_to in (cluster.leave, cluster.restart):
                for each in others:
                    do_to(each)
            self._ask(writer, time.monotonic(), range(len(cluster.leaders(topic))))
            time.sleep(REST)
            leaders = cluster.leaders(topic)
            led = [number for number, leader in enumerate(leaders) if leader == broken]
            told = self._ask(writer, do(broken), led)
            cluster.restart(broken)
            facts = {FIRST: told["first"], "partitions led": float(len(led))}
            if told["silent"]:
                facts[SILENT] = told["silent"]
            last = PATIENCE if told["silent"] else told["last"]
            self.context.say(f"   {topic}, broker {broken}: {last:.3f} s, of {len(led)} partitions")
            samples.append(Sample(value=last, facts=facts))
        return samples

    def _ask(self, writer: Program, since: float, partitions: Sequence[int]) -> dict[str, Any]:
        asked = {"since": since, "partitions": list(partitions), "patience": PATIENCE}
        writer.go(json.dumps(asked))
        return writer.hear("again", 2 * PATIENCE)

    def _beside(self, case: str) -> dict[str, Any]:
        theirs = self.results.find(case, KAFKA)
        return {} if theirs is None else {"rival": KAFKA, "beside": theirs.median}

    def _add(self, case: str, name: str, unit: str, samples: Sequence[Sample]) -> None:
        """A cell of which less is better."""
        if samples:
            found = replace(cell(case, name, unit, samples), better="lower")
            self.results.cells.append(found)
            most = max(found.values)
            self.context.say(f"{case}, {name}: {found.median:.3g} {unit}, at most {most:.3g}")

    # -- followers and rest -------------------------------------------------------------------------

    def catching_up(self, cluster: FolkmootCluster) -> None:
        """A follower that was away is given what it lacks; beside it, the same files are copied. Then
        another one is added at a limited rate, while records come to another topic."""
        free = shutil.disk_usage(self.context.work).free
        size = min(BEHIND_BYTES[self.scale.name], 1e9 * max(1, free // ROOM // 10**9))
        case = f"a follower {size / 1e9:g} GB behind catches up"
        self.topics += 1
        topic, pair = f"replicated-{self.topics}", (1, BROKERS)
        cluster.create(topic, 4, fsync=True, on=pair)
        cluster.cluster.brokers[BROKERS - 1].stop()
        records = self.context.records.get("large", round(size / 10_000))
        told: dict[str, Any] = {
            "topic": topic,
            "records": str(records.path),
            "count": records.count,
            "how": "columns",
        }
        for _ in range(10):
            cluster.client("produce", compression="none", warm=0, **told).run({})
        files = _files(cluster, 1, topic)
        copied = _copied(files, self.context.work / "copy")
        cluster.cluster.brokers[BROKERS - 1].start()
        begun = time.monotonic()
        cluster.leaders(topic)
        took = time.monotonic() - begun
        held = sum(each.stat().st_size for each in files)
        self.results.cells += [
            cell(case, OURS, "MB/s", [Sample(value=held / took / 1e6, facts={"s": took})]),
            cell(
                case, "cp, fsync", "MB/s", [Sample(value=held / copied / 1e6, facts={"s": copied})]
            ),
        ]
        beside = {"rival": "copying with fsync", "beside": held / copied / 1e6}
        self._target(case, self.results.find(case, OURS), times=0.7, **beside)
        self._throttled(cluster, topic, pair)
        cluster.delete_topic(topic)

    def _throttled(self, cluster: FolkmootCluster, topic: str, pair: Sequence[int]) -> None:
        """What producers notice of a third replica that is added to `topic`, which has those of `pair`."""
        rate = f"{THROTTLE / 1e6:g} MB/s"
        case = f"until acknowledged at {CALM_RATE:,} records/s, linger 5 ms, fsync"
        added = next(each for each in range(1, BROKERS + 1) if each not in pair)
        alone, beside = [], []
        for _ in range(self.scale.rounds):
            alone.append(self._latency(cluster, CALM_RATE))
            targets = dict.fromkeys(range(4), (*pair, added))
            execute(cluster.session, reassignments.start(topic, targets, THROTTLE))
            sample = self._latency(cluster, CALM_RATE)
            copied = sum(each.stat().st_size for each in _files(cluster, added, topic))
            execute(cluster.session, reassignments.cancel(topic))
            beside.append(replace(sample, facts={**sample.facts, "MB copied": copied / 1e6}))
        self._add(case, "alone", "p99 ms", alone)
        self._add(case, f"while a replica is added at {rate}", "p99 ms", beside)
        without, found = self.results.cells[-2:]
        text = f"acks=all with fsync at {CALM_RATE:,} records/s, a replica added at {rate}"
        self._target(text, found, times=2.0, rival="without", beside=without.median)

    def quiet(self, cluster: FolkmootCluster, partitions: int) -> None:
        """All is in sync and nobody writes: what ZooKeeper is told, and the processors are used for."""
        case = f"a quiet cluster of {partitions:,} partitions"
        self._topic(cluster, partitions)
        seconds = 10.0
        time.sleep(seconds)  # checkpoints, and what else follows a creation
        pids = {name: pid for name, pid in cluster.processes().items() if name != "ZooKeeper"}
        before, used = (
            _zxid(cluster.address),
            {name: cpu_seconds(pid) for name, pid in pids.items()},
        )
        time.sleep(seconds)
        writes = (_zxid(cluster.address) - before) / seconds
        cpu = [(cpu_seconds(pid) - used[name]) / seconds for name, pid in pids.items()]
        facts = {"a broker's CPU, s in 10 s": max(cpu) * 10}
        self._add(case, OURS, "writes/s", [Sample(value=writes, facts=facts)])
        self._target(f"{case}: ZooKeeper writes", self.results.find(case, OURS), wanted=0.0)


def _files(cluster: FolkmootCluster, broker: int, topic: str) -> list[Path]:
    """A broker's segments of a topic."""
    held = (each for each in cluster.data_of(broker).iterdir() if each.is_dir())
    folders = [each for each in held if topic_in(each) == topic]
    return sorted(file for each in folders for file in each.glob("*.log"))


def _copied(files: Sequence[Path], target: Path) -> float:
    """Seconds that copying them took, fsync included."""
    target.mkdir()
    settle()
    begun = time.monotonic()
    for number, each in enumerate(files):
        with each.open("rb") as source, (target / str(number)).open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    took = time.monotonic() - begun
    shutil.rmtree(target)
    return took


def _zxid(address: str) -> int:
    """The number of ZooKeeper's last write; pings do not count, sessions that come and go do."""
    host, port = address.split("/")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5.0) as connection:
        connection.sendall(b"srvr")
        said = b"".join(iter(partial(connection.recv, 65536), b"")).decode()
    return int(said.split("Zxid: ")[1].split()[0], 16)
