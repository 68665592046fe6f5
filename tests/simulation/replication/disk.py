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

from tests.brokers.power import NAMES, Power


class Disk:
    """One broker's directory. `entered` while its process works, so that the calls are known as its own."""

    def __init__(self, data: Path, *, durable: bool) -> None:
        self.data = data
        self.is_full = False
        self.fails_to_flush = False
        data.mkdir()
        self._cuts = 0
        self._durable = durable
        self._power = Power(data) if durable else None

    def close(self) -> None:
        if self._power is not None:
            self._power.close()

    def power_cut(self, random: Random) -> None:
        """The machine goes down: a file has what was flushed, and some of what was appended since."""
        assert self._power is not None
        self._cuts += 1
        left = self.data.with_name(f"{self.data.name}-{self._cuts}")
        self._power.cut(left, random.choice(NAMES), random)
        self._power.close()
        shutil.rmtree(self.data)
        left.rename(self.data)
        self._power = Power(self.data)

    def flushed(self, fd: int) -> None:
        if self.fails_to_flush:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._power is not None:
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
            patch.setattr(os, "fsync", flushed)
            patch.setattr(os, "fdatasync", flushed)
            patch.setattr(os, "pwritev", written)
            yield
