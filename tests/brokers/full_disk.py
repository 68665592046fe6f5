"""A small file system in memory, and ways to fill it to the last block, or the last file."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest


@contextmanager
def mounted(disk: Path, options: str) -> Iterator[Path]:
    """A directory with a file system of its own, of which `options` say how large it is."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill_blocks(disk: Path) -> None:
    """Leave no block there."""
    for number in count():
        free = os.statvfs(disk).f_bavail
        if not free:
            return
        (disk / f"ballast-{number}").write_bytes(bytes(free * 4096))


def fill_files(disk: Path) -> None:
    """Leave no file that could be made there."""
    for number in count():
        if not os.statvfs(disk).f_favail:
            return
        (disk / f"empty-{number}").touch()


FILL: Final[dict[str, Callable[[Path], None]]] = {"blocks": fill_blocks, "files": fill_files}
