"""The group: its members are processes, and an onlooker sees who owns what."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from folkmoot.admin.admin import Admin
from folkmoot.console.demo.screen import Screen
from folkmoot.console.running.children import ChildProcess
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

GROUP: Final = "delays"
POLL_INTERVAL: Final = 0.25
PATIENCE: Final = 240.0
STOP_TIMEOUT: Final = 40.0


class DemoFailed(FolkmootError):
    """The demo did not come to its end."""


class Group:
    """Members that write to one store. They end with this process. One thread uses it."""

    def __init__(self, zookeeper: str, admin: Admin, directory: Path, screen: Screen) -> None:
        self._zookeeper = zookeeper
        self.running: dict[str, ChildProcess] = {}
        self.generation = 0
        self.owners: dict[TopicPartition, str] = {}
        """The member that owned each partition when the group was stable."""
        self.moves: Counter[tuple[str, str]] = Counter()
        """The number of partitions that went from one member to another; from "" to a first owner."""
        self._admin, self._store, self._screen = admin, directory / "results.db", screen

    def start(self, *names: str) -> None:
        for name in names:
            words = (name, self._zookeeper, GROUP, str(self._store))
            command = [sys.executable, "-m", "folkmoot.console.demo.member", *words]
            self.running[name] = ChildProcess(name, command, self._store.with_name(f"{name}.log"))
            self.running[name].start()
        self._screen.line(f"started {', '.join(names)}, members of the group {GROUP}")

    def stop(self) -> None:
        """Stop all members in order. Raises StartFailed if one fails in that."""
        while self.running:
            _, child = self.running.popitem()
            if child.stop(STOP_TIMEOUT) != 0:
                raise child.failure(child.ending())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running.values():
            child.kill()

    def wait(
        self,
        until: Callable[[], bool],
        failure: str,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Look at the group until something holds. Raises DemoFailed, and StartFailed for a member's end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            meanwhile()
            self._poll()
            if until():
                return
            time.sleep(POLL_INTERVAL)
        raise DemoFailed(f"{failure} within {PATIENCE:g} s")

    def is_shared(self) -> bool:
        """Return whether all members that run own partitions, and no other one does."""
        return set(self.owners.values()) == self.running.keys()

    def _poll(self) -> None:
        for child in self.running.values():
            if not child.is_running:
                raise child.failure(child.ending())
        for view in self._admin.describe_groups([GROUP]):
            # A member's name is `<client id>-<nonce>-<number>`.
            owners = {
                row.partition: row.owner.rsplit("-", 2)[0] for row in view.partitions if row.owner
            }
            if view.state == "stable" and owners != self.owners:
                self._show(view.generation, owners)

    def _show(self, generation: int, owners: dict[TopicPartition, str]) -> None:
        moves = Counter(
            (self.owners.get(partition, ""), owner)
            for partition, owner in owners.items()
            if self.owners.get(partition) != owner
        )
        counts = ", ".join(f"{name} {n}" for name, n in sorted(Counter(owners.values()).items()))
        moved = "; ".join(f"{old} → {new}: {n}" for (old, new), n in sorted(moves.items()) if old)
        self._screen.line(
            f"rebalance {generation}: {counts}" + (f"  (moved {moved})" if moved else "")
        )
        self.generation, self.owners, self.moves = generation, owners, self.moves + moves
