"""The processes of a run: brokers, a standalone cluster, three applications, two plain members.

Application `a` reads on the cluster, `b` reads and `w` writes on this machine. Each process of theirs is
found by what it is (`Stage.pids`), among those that the application was started with.
"""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from folkmoot.admin.admin import Admin
from folkmoot.console.running.children import ChildProcess
from folkmoot.console.running.embedded import ZooKeeperConfig
from folkmoot.console.running.processes import FOLKMOOT, EmbeddedCluster
from folkmoot.console.spark.cluster import StandaloneCluster
from folkmoot.console.spark.spark_environment import spark_environment
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.session import QUICK_START
from tests import processes
from tests.chaos.history import History
from tests.chaos.notes import NotesReader
from tests.chaos.nursery import Nursery
from tests.chaos.scene import SILENT, MemberProcess
from tests.chaos.spark import app
from tests.chaos.transactions import Transactions
from tests.tree import ROOT

TOPIC: Final = "numbers"
GROUP: Final = "readers"
PARTITIONS: Final = 12
MORE: Final = 2
"""So many partitions are added at a time, and so often at most."""
ROWS: Final = 100
READERS: Final = ("a", "b")
WRITER: Final = "w"
BROKER_SESSION: Final = 4.0
MEMBER_SESSION: Final = 10.0
"""Nobody loses it who is only kept by a busy machine: what comes twice then has no fault to explain it."""
_IS: Final = {
    "reader": "python_streaming_source_runner",
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "executor": "CoarseGrainedExecutorBackend",
}
"""What stands in the command of a process of that kind."""
_RANDOM: Final = 0x5DEECE66D, 0xB, (1 << 48) - 1


class Stage:
    """All of it, started and stopped together. One thread uses it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.partitions = PARTITIONS
        known = range(PARTITIONS + MORE * MORE)
        self.history = History("", GROUP, [TopicPartition(TOPIC, each) for each in known])
        self.members: dict[str, MemberProcess] = {}
        self.folder = folder
        self._stack = ExitStack()
        self._born = 0

    def __enter__(self) -> "Stage":
        with ExitStack() as stack:
            self.cluster = stack.enter_context(
                EmbeddedCluster(
                    *(self.folder / "cluster", 3, ZooKeeperConfig(fsync=False)),
                    session_timeout=BROKER_SESSION,
                )
            )
            self._transactions = Transactions([each.data for each in self.cluster.servers])
            self.admin = stack.enter_context(Admin(zookeeper=self.cluster.zookeeper))
            self.admin.create_topic(TOPIC, PARTITIONS, replicas=3)
            environment = spark_environment(self.folder / "java")
            self.spark = StandaloneCluster(
                self.folder / "spark", environment, workers=2, cores=1, memory="2g"
            )
            stack.enter_context(self.spark)
            self.nursery = stack.enter_context(Nursery(self.folder / "nursery.log"))
            self.apps = {name: self._app(name) for name in (*READERS, WRITER)}
            for each in self.apps.values():
                stack.callback(self.end, each)
                each.start()
            for _ in range(2):
                self.start_member()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # -- processes --------------------------------------------------------------------------------

    def _app(self, name: str) -> ChildProcess:
        where = ["--master", self.spark.url] if name == "a" else []
        settings = {
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.sql.streaming.minBatchesToRetain": "1000000",
        }
        words = [f"--conf={key}={value}" for key, value in settings.items()]
        given = {
            "name": name,
            "zookeeper": self.cluster.zookeeper,
            "topic": TOPIC,
            "checkpoint": str(self.checkpoint(name)),
            **(
                {"rows": str(ROWS)}
                if name == WRITER
                else {"group": GROUP, "notes": self._notes(name)}
            ),
        }
        own = [f"--{key}={value}" for key, value in given.items()]
        command = [*FOLKMOOT, "spark", "run", *where, *words, app.__file__, *own]
        return ChildProcess(name, command, self.folder / f"{name}.log", {"PYTHONPATH": str(ROOT)})

    def checkpoint(self, name: str) -> Path:
        return self.folder / f"checkpoint-{name}"

    def _notes(self, name: str) -> str:
        return str(self.folder / f"{name}.notes")

    def read_by(self, name: str) -> Iterator[list[str]]:
        """What an application noted."""
        return NotesReader(Path(self._notes(name))).read()

    def start_member(self) -> MemberProcess:
        self._born += 1
        name = f"m{self._born}"
        output = self.folder / f"{name}.log"
        pid = self.nursery.start(
            "member",
            output,
            zookeeper=self.cluster.zookeeper,
            group=GROUP,
            topics=[TOPIC],
            name=name,
            notes=self._notes(name),
            auto=True,
            session_timeout=MEMBER_SESSION,
            revoke_timeout=20.0,
            auto_offset_reset="earliest",
        )
        notes = NotesReader(Path(self._notes(name)))
        self.members[name] = MemberProcess(name, pid, notes, output, False)
        return self.members[name]

    def living(self) -> list[MemberProcess]:
        return [each for each in self.members.values() if each.alive]

    def pids(self, name: str, kind: str = "") -> list[int]:
        """Processes of an application that are of that kind, or all of them; not its executors, which
        are the workers'."""
        if kind == "executor":
            below = str(self.folder / "spark" / "worker-")
            found = [each for each in _all() if _cwd(each).startswith(below)]
        else:
            session = self.apps[name].pid
            found = [each for each in _all() if _session(each) == session]
        wanted = _IS.get(kind, "")
        return [each for each in found if wanted in processes.told(each, "cmdline")]

    def end(self, child: ChildProcess) -> None:
        """SIGKILL to all that came of it, if it was started."""
        if child.exit_code is None and not child.is_running:
            return
        for pid in self.pids(child.name):
            send(pid, signal.SIGKILL)
        child.kill()

    # -- what has happened --------------------------------------------------------------------------

    def look(self) -> None:
        for transaction in self._transactions.read():
            self.history.take(transaction)
        self.nursery.look()
        for member in self.living():
            member.take_in()
            member.alive = member.pid not in self.nursery.ended

    def ends(self) -> dict[TopicPartition, int]:
        return self.admin.offsets(TOPIC, "latest")

    def unsettled(self, ends: dict[TopicPartition, int]) -> str:
        """What is not as it is to be: each is registered, each partition is somebody's who has come so
        far. Empty if all is well."""
        self.look()
        names = {*READERS, *(member.name for member in self.living())}
        registered = sorted(each.partition("-")[0] for each in self.history.members)
        if registered != sorted(names):
            return f"registered are {registered}, not {sorted(names)}"
        for place in ends:
            life = self.history.lives[place]
            if life.owner is None or life.owner.member not in self.history.members:
                return f"{place} belongs to {life.owner}"
            if (life.state.offset or 0) < ends[place]:
                return f"{place} is committed up to {life.state.offset}, and ended at {ends[place]}"
        return ""

    def expire(self, name: str) -> None:
        """Close the session of a member, as ZooKeeper would; its password follows from its id."""
        session = self.history.members[name].session
        signed = session - (1 << 64) if session >> 63 else session
        twin = KazooClient(
            hosts=self.cluster.zookeeper, client_id=(signed, password(session)), logger=SILENT
        )
        with suppress(Exception):  # it was over already
            twin.start(timeout=5.0)
        twin.stop()
        twin.close()


def password(session: int) -> bytes:
    """ZooKeeper's own: java.util.Random, begun with the id and a constant of its source."""
    factor, addend, mask = _RANDOM
    state, found = ((session ^ 0xB3415C00) ^ factor) & mask, b""
    while len(found) < 16:
        state = (state * factor + addend) & mask
        found += (state >> 16).to_bytes(4, "little")
    return found


class Held:
    """A process that is signalled more than once: never another one that has its id by then."""

    def __init__(self, pid: int) -> None:
        try:
            self._file: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._file = None

    def send(self, number: signal.Signals) -> None:
        if self._file is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, number)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _all() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]


def _session(pid: int) -> int:
    words = processes.told(pid, "stat").rpartition(")")[2].split()
    return int(words[3]) if words else 0


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""
