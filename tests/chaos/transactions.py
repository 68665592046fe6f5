"""What ZooKeeper did, in its own order: the transaction logs of an ensemble, read while it runs.

A watch shows that something changed, never everything that it was. The servers write every change
down before they answer, with the time, in files that anybody may read beside them, so nothing that
is judged here can have been missed, and watching costs ZooKeeper nothing.

A transaction counts when most servers have it. One that only a leader has when it is killed was
never answered; the server cuts it off when it is back.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal
from zlib import adler32

HEADER_BYTES = 16  # "ZKLG", version, database
CHUNK_BYTES = 1 << 16
MOST_BYTES = 1 << 22  # more than a transaction may have
_FRAME = struct.Struct(">qi")  # checksum, length
_TRANSACTION = struct.Struct(">qiqqi")  # session, cxid, zxid, ms, type
_CREATES = {1, 15, 19, 21}
_DELETES = {2, 20}
_SET, _MULTI, _CLOSE, _ERROR = 5, 14, -11, -1
BAD_VERSION = -103


@dataclass(frozen=True, slots=True)
class Change:
    """One node created, written or deleted."""

    kind: Literal["create", "set", "delete"]
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """What happened in one step; `error` says why a multi was refused (then nothing changed).

    `ends` says how its session ended by it, if it did: "closed" by somebody who acts as the session, its
    guardian among them, or "expired" by ZooKeeper, which asks itself for that without a number.
    """

    zxid: int
    session: int
    at: float
    changes: tuple[Change, ...]
    error: int = 0
    ends: Literal["", "closed", "expired"] = ""


class Transactions:
    """Reads the logs of all servers on and hands out, in order, what most of them have.

    What is ready is held back until everything was read once more: a server that was sent a snapshot
    has no earlier transactions in its log, and another's may have been looked at too soon.
    """

    def __init__(self, servers: list[Path]) -> None:
        self._logs = [_ServerLog(path) for path in servers]
        self._quorum = len(servers) // 2 + 1
        self._seen: dict[int, int] = {}
        self._ready: dict[int, bytes] = {}
        self._last = 0

    def read(self) -> list[Transaction]:
        held = sorted(self._ready)
        fresh: dict[int, bytes] = {}
        for log in self._logs:
            for zxid, record in log.read():
                self._seen[zxid] = self._seen.get(zxid, 0) + 1
                if self._seen[zxid] == self._quorum:
                    fresh[zxid] = record
        limit = held[-1] if held else -1
        self._ready |= fresh
        due = sorted(zxid for zxid in self._ready if zxid <= limit)
        if due:
            assert due[0] > self._last, f"transaction {due[0]:x} came after {self._last:x}"
            self._last = due[-1]
        return [decoded(self._ready.pop(zxid)) for zxid in due]


class _ServerLog:
    """One server's files. A restarted server begins a new one; an old one may become shorter."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "version-2"
        self._read: dict[str, int] = {}

    def read(self) -> Iterator[tuple[int, bytes]]:
        names = {path.name for path in self._folder.glob("log.*")} - {""}
        newest = sorted(names, key=lambda name: int(name[4:], 16))[-3:]
        for name in newest:
            with (self._folder / name).open("rb") as file:
                yield from self._more(name, file)

    def _more(self, name: str, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """What is whole. Behind it lie megabytes of nothing, which are not read."""
        most = CHUNK_BYTES
        while True:
            position = self._read.get(name, HEADER_BYTES)
            file.seek(position)
            data = file.read(most)
            taken = 0
            while (found := _record(data, taken)) is not None:
                record, taken = found
                yield _TRANSACTION.unpack_from(record)[2], record
            self._read[name] = position + taken
            if not taken:
                if most != CHUNK_BYTES or _announced(data) <= len(data):
                    return
                most = MOST_BYTES  # one that is larger than all that was read


def _announced(data: bytes) -> int:
    """How many bytes the first record says it has."""
    return int(_FRAME.unpack_from(data)[1]) + _FRAME.size + 1 if len(data) >= _FRAME.size else 0


def _record(data: bytes, start: int) -> tuple[bytes, int] | None:
    """The record there and where the next one begins; None if it is not all there yet.

    A server may be writing while we read, and its last byte be there before one in the middle.
    """
    if start + _FRAME.size > len(data):
        return None
    checksum, length = _FRAME.unpack_from(data, start)
    begin = start + _FRAME.size
    end = begin + length
    if length <= 0 or end >= len(data) or data[end] != 0x42:
        return None
    record = data[begin:end]
    return (record, end + 1) if adler32(record) == checksum else None


def decoded(record: bytes) -> Transaction:
    session, number, zxid, ms, kind = _TRANSACTION.unpack_from(record)
    changes, error = _changes(kind, _Reader(record, _TRANSACTION.size))
    ends: Literal["", "closed", "expired"] = ""
    if kind == _CLOSE:
        ends = "closed" if number else "expired"
    return Transaction(zxid, session & (2**64 - 1), ms / 1000, tuple(changes), error, ends)


def _changes(kind: int, body: "_Reader") -> tuple[list[Change], int]:
    if kind in _CREATES:
        path, data = body.text(), body.buffer()
        for _ in range(body.integer()):  # who may do what
            body.integer()
            body.text()
            body.text()
        return [Change("create", path, data, kind in (1, 15) and body.flag())], 0
    if kind in _DELETES:
        return [Change("delete", body.text())], 0
    if kind == _SET:
        return [Change("set", body.text(), body.buffer())], 0
    if kind == _CLOSE and body.left > 16:  # less is only the digest
        return [Change("delete", body.text()) for _ in range(body.integer())], 0
    if kind == _MULTI:
        parts = [(body.integer(), body.buffer()) for _ in range(body.integer())]
        errors = [struct.unpack_from(">i", part)[0] for kind, part in parts if kind == _ERROR]
        if errors:
            return [], next((error for error in errors if error < -2), -1)
        return [each for kind, part in parts for each in _changes(kind, _Reader(part))[0]], 0
    return [], 0


class _Reader:
    """Walks through what ZooKeeper's own serialisation wrote."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def integer(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._position)
        self._position += 4
        return int(value)

    def flag(self) -> bool:
        self._position += 1
        return self._data[self._position - 1] != 0

    def buffer(self) -> bytes:
        length = max(0, self.integer())
        self._position += length
        return self._data[self._position - length : self._position]

    def text(self) -> str:
        return self.buffer().decode()
