"""What member and sender processes note, a line at a time, so that it outlives their SIGKILL.

One `write` per line to a file that was opened for appending: what was written is in the page cache
of the machine, whatever becomes of the process. Nothing waits for the disk.
"""

import os
from collections.abc import Iterator
from pathlib import Path


class Notes:
    """Where one process writes. Its lines are words."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class NotesReader:
    """Reads on where it stopped; a line that is not whole yet is left for the next time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def read(self) -> Iterator[list[str]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return
        if whole:
            self._position += len(whole) + 1
            for line in whole.decode().split("\n"):
                yield line.split()
