"""What the faults are done to: an ensemble, a broker, a sender, and the group's members as processes."""

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.records import TopicPartition
from tests import processes
from tests.chaos.ensembles import Ensemble
from tests.chaos.history import History
from tests.chaos.notes import NotesReader
from tests.chaos.nursery import Nursery
from tests.chaos.settings import Settings
from tests.chaos.transactions import Transactions

GROUP = "chaos"
CHROOT = "/chaos"

SILENT = logging.getLogger(f"{__name__}.kazoo")  # it would tell of every server that is down
SILENT.setLevel(logging.CRITICAL)


@dataclass(slots=True)
class MemberProcess:
    """A member, and what is known of it."""

    name: str
    pid: int
    notes: NotesReader
    output: Path
    has_long_session: bool = False
    sessions: list[tuple[int, bytes]] = field(default_factory=list)
    reads: list[tuple[float, TopicPartition, int, int, int]] = field(default_factory=list)
    halted: list[list[str]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    refused: int = 0
    alive: bool = True
    busy: bool = False
    """An event is done to it."""

    def take_in(self) -> None:
        for what, *words in self.notes.read():
            match what:
                case "session":
                    self.sessions.append((int(words[0], 16), bytes.fromhex(words[1])))
                case "read":
                    at, topic, number, epoch, first, last = words
                    place = TopicPartition(topic, int(number))
                    self.reads.append((float(at), place, int(epoch), int(first), int(last)))
                case "halted":
                    self.halted.append(words)
                case "outcome":
                    self.outcomes.append(words[0])
                case _:
                    self.refused += 1

    def said(self, lines: int = 30) -> str:
        """The end of its output, for people."""
        with suppress(OSError):
            text = self.output.read_text(errors="replace").strip()
            return "\n    ".join(["", *text.splitlines()[-lines:]])
        return ""

    @property
    def is_stopped(self) -> bool:
        return processes.state(self.pid) == "T"

    def guardian(self) -> int | None:
        """The process id of its guardian, if it has one."""
        return next(
            (
                child
                for child in processes.children(self.pid)
                if "guardian_process.py" in processes.told(child, "cmdline")
            ),
            None,
        )

    def kill_guardian(self) -> bool:
        """SIGKILL to it, and to nobody who has its process id by now."""
        pid = self.guardian()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            found = os.pidfd_open(pid)
            try:
                if self.guardian() == pid:
                    signal.pidfd_send_signal(found, signal.SIGKILL)
                    return True
            finally:
                os.close(found)
        return False


class Scene:
    """All of it, started and stopped together. One thread uses it."""

    def __init__(self, folder: Path, ensemble: Ensemble, settings: Settings, seed: int) -> None:
        self.ensemble = ensemble
        self.settings = settings
        self.random = random.Random(seed)
        self.members: dict[str, MemberProcess] = {}
        self.topics = [f"topic-{number}" for number in range(settings.topics)]
        self.partitions = [
            TopicPartition(topic, number)
            for topic in self.topics
            for number in range(settings.partitions // settings.topics)
        ]
        self.history = History(CHROOT, GROUP, self.partitions)
        self._folder = folder
        self._stack = ExitStack()
        self._numbers = iter(range(1, 1_000_000))

    def __enter__(self) -> "Scene":
        with ExitStack() as stack:
            self._transactions = Transactions(self.ensemble.logs)
            self.zookeeper = self.ensemble.address + CHROOT
            stack.enter_context(
                EmbeddedCluster(self._folder / "cluster", 1, self.zookeeper, session_timeout=10.0)
            )
            self._create_topics()
            self.client = KazooClient(hosts=self.ensemble.address, timeout=20.0, logger=SILENT)
            self.client.start()
            stack.callback(self.client.close)
            stack.callback(self.client.stop)
            self.nursery = stack.enter_context(Nursery(self._folder / "nursery.log"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _create_topics(self) -> None:
        session = connect(self.zookeeper, 10.0)
        try:
            alive = list(execute(session, brokers.live()))
            for topic in self.topics:
                execute(
                    session, topics.create(topic, len(self.partitions) // len(self.topics), alive)
                )
        finally:
            session.close()

    # -- processes --------------------------------------------------------------------------------

    def start_member(self) -> MemberProcess:
        number = next(self._numbers)
        name = f"m{number}"
        notes, output = self._folder / f"{name}.notes", self._folder / f"{name}.log"
        living = self.living()
        long = 2 * sum(member.has_long_session for member in living) < len(living)
        settings = self.settings
        options: dict[str, Any] = {
            "session_timeout": settings.long_session_timeout if long else settings.session_timeout,
            "revoke_timeout": settings.release_timeout,
            "max_processing_time": settings.max_processing,
            "fetch_max_wait": 1.0,
        }
        pid = self.nursery.start(
            "member",
            output,
            zookeeper=self.zookeeper,
            group=GROUP,
            topics=self.topics,
            name=name,
            notes=str(notes),
            auto=self.random.random() < 0.5,
            **options,
        )
        self.members[name] = MemberProcess(name, pid, NotesReader(notes), output, long)
        return self.members[name]

    def start_sender(self) -> None:
        self.sent = NotesReader(self._folder / "sender.notes")
        self.sender = self.nursery.start(
            "sender",
            self._folder / "sender.log",
            zookeeper=self.zookeeper,
            topics=self.topics,
            partitions=len(self.partitions) // len(self.topics),
            pause=self.settings.send_every,
            notes=str(self.sent.path),
            linger=0.01,
        )

    def signal(self, member: MemberProcess, number: signal.Signals) -> None:
        self.nursery.signal(member.pid, number)

    def living(self) -> list[MemberProcess]:
        return [member for member in self.members.values() if member.alive]

    def look(self) -> None:
        """Take in all that has happened."""
        self.ensemble.refresh()
        for transaction in self._transactions.read():
            self.history.take(transaction)
        for member in self.living():
            member.take_in()
        self.nursery.look()

    def expire(self, session: tuple[int, bytes]) -> None:
        """Be a second client of a session, and close it."""
        twin = KazooClient(
            hosts=self.ensemble.address, client_id=session, timeout=5.0, logger=SILENT
        )
        with suppress(Exception):  # the session was over already
            twin.start(timeout=5.0)
        twin.stop()
        twin.close()

    # -- the group --------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Who lives is registered, nobody else, and each has its share of all partitions."""
        names = {member.name for member in self.living()}
        registered = [name.partition("-")[0] for name in self.history.members]
        if sorted(registered) != sorted(names):
            return False
        shares = dict.fromkeys(names, 0)
        for life in self.history.lives.values():
            if life.owner is None or life.owner.member not in self.history.members:
                return False
            shares[life.owner.member.partition("-")[0]] += 1
        return max(shares.values()) - min(shares.values()) <= 1

    def unsettled(self) -> Iterator[str]:
        """What is_settled misses, for people."""
        names = {member.name for member in self.living()}
        registered = {name.partition("-")[0] for name in self.history.members}
        yield f"alive and not registered {sorted(names - registered)}"
        yield f"registered and not alive {sorted(registered - names)}"
        yield from self._registered_twice()
        now = time.time()
        for partition, life in self.history.lives.items():
            planned = sorted(self.history.planned_for(partition, now, now))
            if life.owner is None:
                yield f"{partition} has no owner since {now - life.since:.2f} s, planned for {planned}"
            elif life.owner.member not in self.history.members:
                yield f"{partition} belongs to {life.owner.member}, epoch {life.owner.epoch}"
        shares = {name: len(self.history.owned_by(name)) for name in sorted(names)}
        yield f"shares {shares}"

    def _registered_twice(self) -> Iterator[str]:
        counts = Counter(name.partition("-")[0] for name in self.history.members)
        for name, node in self.history.members.items():
            client = name.partition("-")[0]
            if counts[client] > 1:
                member = self.members.get(client)
                sessions = [number for number, _ in member.sessions] if member else []
                whose = "its own" if node.session in sessions else "not its own"
                last = " and the last" if sessions[-1:] == [node.session] else ""
                yield (
                    f"{client} is registered more than once: {name} since "
                    f"{time.time() - node.at:.2f} s by session {node.session:x}, {whose}{last}"
                )
