"""Three replicas: what `acks=all` costs, how long writes wait when brokers die, and what rest costs.

Folkmoot and Kafka each have three brokers on this machine, topics of three replicas, two of which must be
in sync. Writers continue while a broker is killed or stopped: the figure is how long after that the first
record that was sent later was acknowledged, in the last of the partitions that broker led.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import JIT_WARM_UP_RECORDS, Context, Sample, settle
from benchmarks.measuring import cpu_seconds
from benchmarks.peers.clusters import BROKERS, Cluster, FolkmootCluster, KafkaCluster
from benchmarks.programs import Program
from folkmoot.brokers.storage.files.cluster_facts import topic_in
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.zookeeper.execute import execute

TITLE: Final = "Replication: acks=all, and brokers that die"

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
"""Between two records to a partition of the writers' topic; of many partitions ten times as long."""
CALM_TIME: Final = 1.0
PATIENCE: Final = 40.0
SESSION: Final = 6.0
QUIET: Final = 10.0
KILLS_A_ROUND: Final = 4
BEHIND_BYTES: Final = {"full": 10e9, "quick": 1e9}
ROOM: Final = 3
"""How many times what a follower lacks must be free: leader, follower, and the copy beside."""
THROTTLE: Final = 25_000_000
THROUGHPUT: Final = "acks=all, page cache, 100 B, 12 partitions, zstd"
FSYNC: Final = "acks=all, fsync, 100 B, 12 partitions, zstd"
KILL: Final = "the leader of some partitions is killed"
STOP: Final = "the leader of some partitions is stopped in order"
FIRST: Final = "first partition, s"
SILENT: Final = "partitions not writable in time"

Break = Callable[[int], None]
"""Does something to a broker."""


def run(context: Context) -> None:
    _Cases(context).run()
    context.results.notes.append(
        "Three brokers each on one machine; replicas 3, min_in_sync 2; clients and brokers share the "
        "processors. Seconds are counted from the signal until a record sent after it is acknowledged "
        "in the last partition that the broker led; every partition gets one each "
        f"{INTERVAL * 1000:g} ms (of many partitions each {INTERVAL * 10_000:g} ms). Kafka's broker sessions "
        "last 9 s, Folkmoot's 6 s, which count where no guardian ends them."
    )


class _Cases:
    """The cases of a run, one after the other, on clusters that live as long."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.results = context.results
        self.scale = context.scale
        self.clusters: dict[str, Cluster] = {}
        self.topics = 0

    def run(self) -> None:
        context, is_smoke = self.context, self.scale.name == "smoke"
        many = {"smoke": 20, "quick": 200}.get(self.scale.name, 1_000)
        with FolkmootCluster(context.work / "folkmoot-3") as ours:
            self.clusters[OURS] = ours
            with ExitStack() as stack:
                if context.has("kafka"):
                    theirs = KafkaCluster(context.work / "kafka-3")
                    self.clusters[KAFKA] = stack.enter_context(theirs)
                context.attempt("throughput", self.throughput)
                context.attempt("fsync_latency", self.fsync_latency)
                context.attempt("kills", self.kills)
                context.attempt("many", partial(self.many, many))
            self.clusters.pop(KAFKA, None)
            context.attempt("fsync", partial(self.fsync, ours))
            context.attempt("controller", partial(self.controller, ours, many))
            if not is_smoke:
                partitions = 1_000 if self.scale.name == "quick" else 10_000
                context.attempt("catching_up", partial(self.catch_up, ours))
                context.attempt("quiet", partial(self.quiet, ours, partitions))

    @contextmanager
    def _topic(self, cluster: Cluster, partitions: int, *, fsync: bool = False) -> Iterator[str]:
        """A topic that is deleted behind it."""
        self.topics += 1
        topic = f"replicated-{self.topics}"
        cluster.create(topic, partitions, fsync=fsync)
        yield topic
        cluster.delete_topic(topic)

    def _judge(self, text: str, case: str, name: str = OURS, *, wanted: float) -> None:
        """A target on the worst of our figures where less is better, beside Kafka's median."""
        ours, theirs = self.results.find(case, name), self.results.find(case, KAFKA)
        self.results.judge(text, ours, theirs, worst=True, wanted=wanted)

    def _add(self, case: str, name: str, unit: str, samples: Sequence[Sample]) -> None:
        """A cell of which less is better."""
        if samples:
            found = self.context.add(case, name, unit, samples, "lower")
            most = max(found.values)
            self.context.print_status(
                f"{case}, {name}: {found.median:.3g} {unit}, at most {most:.3g}"
            )

    # -- records a second ---------------------------------------------------------------------------

    def throughput(self) -> None:
        contenders = {
            SEND: partial(self._rate, OURS, "send"),
            COLUMNS: partial(self._rate, OURS, "columns"),
        }
        if KAFKA in self.clusters:
            contenders[CONFLUENT] = partial(self._rate, KAFKA, "produce")
            self._warm_up_jit()
        self.context.alternate(THROUGHPUT, "records/s", contenders)
        theirs = self.results.find(THROUGHPUT, CONFLUENT)
        for name, times in ((SEND, 1.5), (COLUMNS, 4.0)):
            text = f"acks=all, {name.split()[1]}"
            self.results.judge(text, self.results.find(THROUGHPUT, name), theirs, times=times)

    def _warm_up_jit(self) -> None:
        """Have Kafka's servers compile what they will be measured at, as elsewhere."""
        cluster, records = (
            self.clusters[KAFKA],
            self.context.records.get("small", JIT_WARM_UP_RECORDS),
        )
        with self._topic(cluster, PARTITIONS) as topic:
            cluster.produce(topic, records.path, records.count, acks="all")

    def _rate(self, name: str, how: str, *, fsync: bool = False) -> Sample:
        cluster = self.clusters[name]
        most = {"send": 500_000, "columns": 1_000_000, "produce": 400_000}[how]
        records = self.context.records.get("small", max(20_000, int(most * self.scale.seconds)))
        with self._topic(cluster, PARTITIONS, fsync=fsync) as topic:
            more: dict[str, Any] = {"how": how, "acks": "all", "warm": 10_000}
            written = cluster.produce(topic, records.path, records.count, **more)
        facts = {name: written.facts[name] for name in ("client CPU", "server CPU")}
        return Sample(value=written.rate, facts=facts)

    def fsync(self, cluster: FolkmootCluster) -> None:
        measure = {COLUMNS: partial(self._rate, OURS, "columns", fsync=True)}
        self.context.alternate(FSYNC, "records/s", measure)
        before, now = (self.results.find(each, COLUMNS) for each in (THROUGHPUT, FSYNC))
        rival = None if before is None else replace(before, contender="page cache")
        self.results.judge("acks=all with fsync, send_batch()", now, rival, times=0.7)

    def fsync_latency(self) -> None:
        """Of each record, from when it was due; Kafka's topic has `flush.messages=1`."""
        case = f"acks=all, fsync, until acknowledged at {RATE:,} records/s, linger 5 ms"
        contenders = {
            name: partial(self._latency, cluster, RATE) for name, cluster in self.clusters.items()
        }
        self.context.alternate(case, "p99 ms", contenders, None, "lower")
        self._judge(case, case, wanted=20.0)

    def _latency(self, cluster: Cluster, rate: int) -> Sample:
        seconds = 2 * self.scale.seconds if self.scale.name != "smoke" else 0.5
        with (
            self._topic(cluster, PARTITIONS, fsync=True) as topic,
            self._paced(cluster, topic, rate, seconds) as program,
        ):
            before = sum(map(cpu_seconds, cluster.processes().values()))
            report = program.wait_done()
            used = sum(map(cpu_seconds, cluster.processes().values())) - before
        lags = {name: (lag - report["begun"]) / 1e6 for name, lag in report["lags"].items()}
        p99 = lags.pop("p99")
        facts = {f"{name} ms": lag for name, lag in lags.items()}
        return Sample(value=p99, facts={**facts, "server CPU": used / report["records"] * 1e6})

    @contextmanager
    def _paced(self, cluster: Cluster, topic: str, rate: int, seconds: float) -> Iterator[Program]:
        count = round(rate * seconds)
        parameters = {"topic": topic, "count": count, "rate": rate, "size": 100, "linger": 0.005}
        paced = cluster.client("acknowledged", program="paced", warm=count // 4, **parameters)
        with paced as program:
            program.wait_ready()
            settle()
            program.go()
            yield program

    # -- brokers that die ---------------------------------------------------------------------------

    def kills(self) -> None:
        """Of a broker that leads a third of some partitions; then the same in order."""
        is_full = self.scale.name == "full"
        for name, cluster in self.clusters.items():
            rounds = self.scale.rounds
            if name == OURS:
                rounds = KILLS_A_ROUND * rounds if is_full else 3
            with (
                self._topic(cluster, PARTITIONS, fsync=name == OURS) as topic,
                self._writer(cluster, topic, PARTITIONS, INTERVAL) as writer,
            ):
                measure_breaks = partial(self._breaks, cluster, writer, topic)
                self._add(KILL, name, "s", measure_breaks(cluster.kill_broker, rounds))
                self._add(STOP, name, "s", measure_breaks(cluster.leave, rounds))
                if name == OURS and self.scale.name != "smoke":
                    alone = partial(cluster.kill_broker, guardian=True)
                    self._add(KILL, ALONE, "s", measure_breaks(alone, self.scale.rounds))
        self._judge("leader killed, until writable", KILL, wanted=0.7)
        text = "leader and guardian killed, until writable"
        self._judge(text, KILL, ALONE, wanted=SESSION + 1)
        self._judge("leader stopped in order, until writable", STOP, wanted=0.2)

    def many(self, partitions: int) -> None:
        """A broker that leads all of many partitions is killed; of Kafka's a third, since its controllers
        need two of the three nodes."""
        case = f"a broker that leads {partitions:,} partitions is killed"
        for name, cluster in self.clusters.items():
            kills: dict[str, Break] = {name: cluster.kill_broker}
            if name == OURS and self.scale.name != "smoke":
                kills[ALONE] = partial(cluster.kill_broker, guardian=True)
            with (
                self._topic(cluster, partitions) as topic,
                self._writer(cluster, topic, partitions, 10 * INTERVAL) as writer,
            ):
                for contender, kill in kills.items():
                    times, leads_all = self.scale.spare_rounds, name == OURS
                    samples = self._breaks(cluster, writer, topic, kill, times, leads_all=leads_all)
                    self._add(case, contender, "s", samples)
        self._judge(f"{case}: all writable", case, wanted=3.0)
        text = f"{case}, its guardian, too: all writable"
        self._judge(text, case, ALONE, wanted=SESSION + 3)

    def controller(self, cluster: FolkmootCluster, partitions: int) -> None:
        """The broker that leads and is the controller is killed, while records come to another topic."""
        case = f"controller and leader killed together, {partitions:,} partitions, under load"
        samples = []
        with self._topic(cluster, partitions) as topic, self._topic(cluster, PARTITIONS) as other:
            for _ in range(self.scale.spare_rounds):
                victim = cluster.controller()
                with (
                    self._writer(cluster, topic, partitions, 10 * INTERVAL) as writer,
                    self._paced(cluster, other, BACKGROUND_RATE, PATIENCE),
                ):
                    how: dict[str, Any] = {"victim": victim, "leads_all": True}
                    samples += self._breaks(cluster, writer, topic, cluster.kill_broker, 1, **how)
            self._add(case, OURS, "s", samples)
        self._judge(f"{case}: all writable", case, wanted=4.0)

    @contextmanager
    def _writer(
        self, cluster: Cluster, topic: str, partitions: int, interval: float
    ) -> Iterator[Program]:
        parameters = {"topic": topic, "partitions": partitions, "interval": interval, "linger": 0.0}
        with cluster.client("write", program="paced", **parameters) as program:
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
            target = cluster.leaders(topic)[0] if victim is None else victim
            others = [each for each in range(1, BROKERS + 1) if leads_all and each != target]
            for do_to in (cluster.leave, cluster.restart):
                for each in others:
                    do_to(each)
            self._query_writer(writer, time.monotonic(), range(len(cluster.leaders(topic))))
            time.sleep(CALM_TIME)
            leaders = cluster.leaders(topic)
            led = [number for number, leader in enumerate(leaders) if leader == target]
            since = time.monotonic()
            do(target)
            answer = self._query_writer(writer, since, led)
            cluster.restart(target)
            facts = {FIRST: answer["first"], "partitions led": float(len(led))}
            if answer["silent"]:
                facts[SILENT] = answer["silent"]
            last = PATIENCE if answer["silent"] else answer["last"]
            self.context.print_status(
                f"   {topic}, broker {target}: {last:.3f} s, of {len(led)} partitions"
            )
            samples.append(Sample(value=last, facts=facts))
        return samples

    def _query_writer(
        self, writer: Program, since: float, partitions: Sequence[int]
    ) -> dict[str, Any]:
        query = {"since": since, "partitions": list(partitions), "patience": PATIENCE}
        writer.go(json.dumps(query))
        return writer.wait_for_event("again", 2 * PATIENCE)

    # -- followers and rest -------------------------------------------------------------------------

    def catch_up(self, cluster: FolkmootCluster) -> None:
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
        for _ in range(10):
            more = {"how": "columns", "compression": "none"}
            cluster.produce(topic, records.path, records.count, **more)
        files = _files(cluster, 1, topic)
        copied = _copy_seconds(files, self.context.work / "copy")
        cluster.cluster.brokers[BROKERS - 1].start()
        started_at = time.monotonic()
        cluster.leaders(topic)
        took = time.monotonic() - started_at
        stored_bytes = sum(each.stat().st_size for each in files)
        found, rival = (
            self.context.add(
                case,
                contender,
                "MB/s",
                [Sample(value=stored_bytes / seconds / 1e6, facts={"s": seconds})],
            )
            for contender, seconds in ((OURS, took), ("cp, fsync", copied))
        )
        rival = replace(rival, contender="copying with fsync")
        self.results.judge(case, found, rival, times=0.7)
        self._throttled(cluster, topic, pair)
        cluster.delete_topic(topic)

    def _throttled(self, cluster: FolkmootCluster, topic: str, pair: Sequence[int]) -> None:
        """What producers notice of a third replica that is added to `topic`, which has those of `pair`."""
        rate = f"{THROTTLE / 1e6:g} MB/s"
        case = f"until acknowledged at {CALM_RATE:,} records/s, linger 5 ms, fsync"
        added = next(each for each in range(1, BROKERS + 1) if each not in pair)
        alone, throttled = [], []
        for _ in range(self.scale.rounds):
            alone.append(self._latency(cluster, CALM_RATE))
            targets = dict.fromkeys(range(4), (*pair, added))
            execute(cluster.session, reassignments.start(topic, targets, THROTTLE))
            sample = self._latency(cluster, CALM_RATE)
            copied = sum(each.stat().st_size for each in _files(cluster, added, topic))
            execute(cluster.session, reassignments.cancel(topic))
            throttled.append(replace(sample, facts={**sample.facts, "MB copied": copied / 1e6}))
        self._add(case, "alone", "p99 ms", alone)
        self._add(case, f"while a replica is added at {rate}", "p99 ms", throttled)
        without, found = self.results.cells[-2:]
        text = f"acks=all with fsync at {CALM_RATE:,} records/s, a replica added at {rate}"
        baseline = replace(without, contender="without")
        self.results.judge(text, found, baseline, times=2.0, worst=True)

    def quiet(self, cluster: FolkmootCluster, partitions: int) -> None:
        """All is in sync and no client writes: what ZooKeeper still writes, and the brokers' CPU."""
        case = f"a quiet cluster of {partitions:,} partitions"
        cluster.create("quiet", partitions)
        time.sleep(QUIET)  # checkpoints, and what else follows a creation
        pids = {name: pid for name, pid in cluster.processes().items() if name != "ZooKeeper"}
        before = _zxid(cluster.address)
        used = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(QUIET)
        writes = (_zxid(cluster.address) - before) / QUIET
        cpu = [(cpu_seconds(pid) - used[name]) / QUIET for name, pid in pids.items()]
        facts = {"a broker's CPU, s in 10 s": max(cpu) * 10}
        self._add(case, OURS, "writes/s", [Sample(value=writes, facts=facts)])
        self._judge(f"{case}: ZooKeeper writes", case, wanted=0.0)


def _files(cluster: FolkmootCluster, broker: int, topic: str) -> list[Path]:
    """A broker's segments of a topic."""
    folders_of_broker = (each for each in cluster.data_of(broker).iterdir() if each.is_dir())
    folders = [each for each in folders_of_broker if topic_in(each) == topic]
    return sorted(file for each in folders for file in each.glob("*.log"))


def _copy_seconds(files: Sequence[Path], target: Path) -> float:
    """Seconds that copying them took, fsync included."""
    target.mkdir()
    settle()
    started_at = time.monotonic()
    for number, each in enumerate(files):
        with each.open("rb") as source, (target / str(number)).open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    took = time.monotonic() - started_at
    shutil.rmtree(target)
    return took


def _zxid(address: str) -> int:
    """The number of ZooKeeper's last write; pings do not count, sessions that come and go do."""
    host, port = address.split("/")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5.0) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(partial(connection.recv, 65536), b"")).decode()
    return int(answer.split("Zxid: ")[1].split()[0], 16)
