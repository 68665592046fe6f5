"""The disks of simulated brokers: real files, of which a power cut takes what was not flushed; and errors."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from folkmoot.brokers.storage import log_manager
from folkmoot.brokers.storage.log_manager import RUNNING_FILE
from tests.brokers.power import NAMES, Power


class Disk:
    """One broker's directory. `entered` while its process works, so that the calls are known as its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.is_full = False
        self.fails_to_flush = False
        data.mkdir()
        self._cuts = self._boots = 0
        self._power = Power(data)

    @property
    def boot(self) -> bytes:
        """Of the machine."""
        return b"boot %d" % self._boots

    @property
    def is_trusted(self) -> bool:
        """Whether the next start takes what was in the page cache for complete."""
        running = self.data / RUNNING_FILE
        return running.exists() and running.read_bytes() == self.boot

    def close(self) -> None:
        self._power.close()

    def power_cut(self, random: Random, *, reboots: bool = True) -> None:
        """The machine goes down: a file has what was flushed, and some of what was appended since. Or the
        kernel alone has given that up, of what it could not write: not what the broker wrote last."""
        self._cuts += 1
        self._boots += reboots
        last = (self.data / RUNNING_FILE).read_bytes()
        left = self.data.with_name(f"{self.data.name}-{self._cuts}")
        self._power.cut(left, random.choice(NAMES), random)
        self._power.close()
        shutil.rmtree(self.data)
        left.rename(self.data)
        if not reboots:
            (self.data / RUNNING_FILE).write_bytes(last)
        self._power = Power(self.data)

    def flushed(self, fd: int) -> None:
        if self.fails_to_flush:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._power.flushed(fd)


class Disks:
    """Stands between the brokers and the system's calls."""

    def __init__(self) -> None:
        self.now: Disk | None = None

    @contextmanager
    def of(self, disk: Disk) -> Iterator[None]:
        """What is called meanwhile is of this broker."""
        before, self.now = self.now, disk
        try:
            yield
        finally:
            self.now = before

    def boot(self) -> bytes:
        """Of the machine whose call this is."""
        return b"" if self.now is None else self.now.boot

    @contextmanager
    def watched(self) -> Iterator[None]:
        write = os.pwritev

        def flushed(fd: int) -> None:
            if self.now is not None:
                self.now.flushed(fd)

        def written(fd: int, parts: Any, position: int) -> int:
            if self.now is not None and self.now.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, parts, position)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_manager, "boot_id", self.boot)
            patch.setattr(os, "fsync", flushed)
            patch.setattr(os, "fdatasync", flushed)
            patch.setattr(os, "pwritev", written)
            yield
