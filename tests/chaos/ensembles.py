"""The ZooKeeper that a group lives on, and what is done to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from folkmoot.console.running.children import StartFailed
from folkmoot.console.running.embedded import EmbeddedZooKeeper, ZooKeeperConfig
from tests.chaos.settings import Settings
from tests.servers import ZooKeeperEnsemble

ARCHIVE_PATIENCE = 60.0
PATIENCE = 60.0
ATTEMPTS = 4


class Ensemble(Protocol):
    """Running servers. `kill_leader` and `restart_all` are called in a thread of their own."""

    address: str
    logs: list[Path]
    """The servers' data directories, or what `refresh` makes of them here."""

    def refresh(self) -> None: ...

    def kill_leader(self) -> None:
        """SIGKILL; it starts again when there is another."""
        ...

    def restart_all(self) -> None:
        """One after the other, in order."""
        ...


class ChildEnsemble:
    """Three servers as child processes."""

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._ensemble = ensemble
        self._one_at_a_time = Lock()  # two servers down were no ensemble
        self.address = ensemble.address
        self.logs = [server.data for server in ensemble.servers]

    def refresh(self) -> None:
        pass

    def kill_leader(self) -> None:
        with self._one_at_a_time:
            leader = self._ensemble.leader(PATIENCE)
            leader.kill()
            self._ensemble.leader(PATIENCE)
            _start(leader)

    def restart_all(self) -> None:
        """The leader last."""
        with self._one_at_a_time:
            leader = self._ensemble.leader(PATIENCE)
            others = [server for server in self._ensemble.servers if server is not leader]
            for server in (*others, leader):
                server.stop()
                _start(server)
                self._ensemble.leader(PATIENCE)


def _start(server: EmbeddedZooKeeper) -> None:
    """On a machine that has much else to do it may need more than one attempt."""
    for attempt in range(ATTEMPTS):
        try:
            server.start()
            return
        except StartFailed:
            if attempt == ATTEMPTS - 1:
                raise


@contextmanager
def children(folder: Path, settings: Settings) -> Iterator[Ensemble]:
    tick = ZooKeeperConfig(fsync=False, tick_time=settings.tick)
    with ZooKeeperEnsemble(folder, tick) as ensemble:
        _share_classes(ensemble, folder.parent / "zookeeper.jsa")
        yield ChildEnsemble(ensemble)


def _share_classes(ensemble: ZooKeeperEnsemble, archive: Path) -> None:
    """Have servers start with their classes parsed already: a third of what a start costs.

    The archive is made by one of them when it ends, once per directory. A Java that cannot make one,
    or for which this one was not made, starts as ever.
    """
    server = ensemble.servers[0]
    config = server.config
    if not archive.exists():
        own = archive.with_suffix(f".{os.getpid()}")  # others may be at it, too
        server.config = replace(config, java_options=(f"-XX:ArchiveClassesAtExit={own}",))
        server.stop()
        _start(server)
        server.stop(ARCHIVE_PATIENCE)
        if own.exists():
            own.replace(archive)
    for each in ensemble.servers:
        each.config = replace(config, java_options=(f"-XX:SharedArchiveFile={archive}",))
    if not server.is_running:
        _start(server)
