"""What a power cut leaves of a directory: what was flushed, and of all else as much as chance will have."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Final

import pytest

NAMES: Final = ("those flushed", "those of now")


class Power:
    """Looks on as files and directories are flushed; `cut` makes what is on the disk then.

    A file has the content of its last flush, and perhaps some of what was appended since. The names in
    a directory are those of its last flush (`those flushed`), or as they are (`those of now`): file
    systems write names and contents on their own, so a new name may lead to an empty file.

    What is there at the beginning is on the disk. An inode is kept open as long as it is known, so
    that its number is not given to another.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._open: dict[int, int] = {}
        for directory, _, files in os.walk(root):
            for path in (directory, *(os.path.join(directory, each) for each in files)):
                fd = os.open(path, os.O_RDONLY)
                self.flushed(fd)
                os.close(fd)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Until the end flushes are looked at, and nobody waits for them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self.flushed)
            patch.setattr(os, "fdatasync", self.flushed)
            yield

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)

    def cut(self, into: Path, names: str, chance: random.Random) -> None:
        """Make in `into` what is left."""
        self._leave(os.stat(self._root).st_ino, self._root, into, names, chance)

    def flushed(self, fd: int) -> None:
        inode = self._keep(fd)
        if not S_ISDIR(os.fstat(fd).st_mode):
            self._contents[inode] = _content(fd)
            return
        self._names[inode] = {}
        for name in os.listdir(fd):
            child = os.open(name, os.O_RDONLY, dir_fd=fd)
            self._names[inode][name] = self._keep(child)
            os.close(child)

    def _keep(self, fd: int) -> int:
        inode = os.fstat(fd).st_ino
        if inode not in self._open:
            self._open[inode] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        return inode

    def _leave(
        self, inode: int, now: Path | None, into: Path, names: str, chance: random.Random
    ) -> None:
        into.mkdir()
        if names == NAMES[0] or now is None:
            found = self._names.get(inode, {})
        else:
            found = {entry.name: entry.inode() for entry in os.scandir(now)}
        for name, child in sorted(found.items()):
            path = None if now is None else now / name
            if path is not None and not (path.exists() and path.stat().st_ino == child):
                path = None
            fd = self._open.get(child)
            status = os.fstat(fd) if fd is not None else os.stat(path or "")
            if S_ISDIR(status.st_mode):
                self._leave(child, path, into / name, names, chance)
                continue
            flushed = self._contents.get(child, b"")
            content = path.read_bytes() if fd is None and path is not None else _content(fd or 0)
            if content.startswith(flushed) and len(content) > len(flushed):
                flushed = content[: chance.randrange(len(flushed), len(content) + 1)]
            (into / name).write_bytes(flushed)


def _content(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()
