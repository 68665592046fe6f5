"""The members' processes: how they are started, and what they say."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from folkmoot.console.running.children import ChildProcess
from folkmoot.console.running.java import find_java, spark_java_home

SPARK: Final = "spark"
SPARK_HAND_OVER: Final = 10.0
COMMIT_EVERY: Final = 3.0
SESSION_TIMEOUT: Final = 5.0
STOP_TIMEOUT: Final = 40.0


class MemberProcess:
    """A member as a child process. `look` takes in what it said; one thread uses it."""

    def __init__(self, name: str, child: ChildProcess) -> None:
        self.name = name
        self.child = child
        self.progress: dict[str, Any] = {}
        """What it told last of its own work; empty before it did."""
        self._read = 0

    def look(self) -> list[dict[str, Any]]:
        """What was said since the last look. Raises StartFailed if the process has ended."""
        if not self.child.is_running:
            raise self.child.failure(f"ended with exit code {self.child.exit_code}")
        events = []
        with self.child.log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # the rest of it is being written
                self._read += len(line)
                if line.startswith(b'{"event"'):
                    events.append(json.loads(line))
        for event in events:
            if event["event"] == "progress":
                self.progress = event
        return events

    @property
    def has_uncommitted(self) -> bool:
        """It has processed records, and there is time before it commits them."""
        uncommitted: int = self.progress.get("uncommitted", 0)
        next_commit: float = self.progress.get("next_commit", 0.0)
        return uncommitted > 0 and next_commit > COMMIT_EVERY / 3


class Members:
    """Starts members of one group that write to one store; stops all of them at the end."""

    def __init__(self, directory: Path, zookeeper: str, group: str, topic: str) -> None:
        self.directory = directory
        self.results = directory / f"{group}.db"
        self.running: dict[str, MemberProcess] = {}
        self._group = group
        self._options = ["--zookeeper", zookeeper, "--group", group, "--topic", topic]
        self._options += ["--results", str(self.results)]

    def start_plain(self, name: str) -> None:
        options = ["--commit-every", str(COMMIT_EVERY), "--session-timeout", str(SESSION_TIMEOUT)]
        self._start(name, "member", options, {})

    def start_spark(self) -> None:
        home = spark_java_home(find_java(), self.directory / "spark-java")
        options = ["--checkpoint", str(self.directory / f"{self._group}-checkpoint")]
        options += ["--hand-over", str(SPARK_HAND_OVER)]
        self._start(SPARK, "spark_member", options, {"JAVA_HOME": str(home)})

    def look(self) -> None:
        """Take in what all said. Raises StartFailed if one has ended that nobody killed."""
        for member in self.running.values():
            member.look()

    def pause(self, name: str) -> None:
        """SIGSTOP; its session lasts for SESSION_TIMEOUT."""
        self.running[name].child.pause()

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.running[name].child.resume()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.running.pop(name).child.kill()

    def stop(self) -> None:
        """In order, all at once. Raises StartFailed if one does not end in order."""
        for member in self.running.values():
            member.child.terminate()
        codes = {member: member.child.stop(STOP_TIMEOUT) for member in self.running.values()}
        self.running.clear()
        for member, code in codes.items():
            if code != 0:
                raise member.child.failure(f"did not stop in order, exit code {code}")

    def stop_at_once(self) -> None:
        """Whatever still runs, after an error."""
        for member in self.running.values():
            member.child.kill()
        self.running.clear()

    def _start(
        self, name: str, module: str, options: list[str], environment: dict[str, str]
    ) -> None:
        command = [sys.executable, "-m", f"folkmoot.console.demo.{module}", "--name", name]
        child = ChildProcess(
            name,
            [*command, *self._options, *options],
            self.directory / f"{self._group}-{name}.log",
            {"PYTHONUNBUFFERED": "1", **environment},
        )
        child.start()
        self.running[name] = MemberProcess(name, child)
