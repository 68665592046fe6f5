"""A batch of one partition: it grows, is sealed when it is sent, and ends delivered or failed."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from folkmoot.producers.sequences import NOBODY, Identity
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import BinaryColumn, BinaryRuns, Columns, bytes_of
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import Headers, TopicPartition

PACK_FROM: Final = 64
"""So many records are written packed: fewer are read more quickly from lists."""
RECORD_OVERHEAD_BYTES: Final = 32
TINY_BYTES: Final = 160
"""A body of no more is not compressed: that takes both sides longer than packing it, for a dozen bytes."""

Stamps = npt.NDArray[np.int64]


class Sorted(NamedTuple):
    """The records of a chunk, as columns, sorted by partition."""

    keys: BinaryColumn | None
    values: BinaryColumn
    stamps: Stamps
    headers: Sequence[Headers] | None


class Piece:
    """Records of one chunk that go to one partition: the rows from `start` to `end` of `columns`, which
    all pieces of the chunk share. `size` counts overhead as well."""

    __slots__ = ("columns", "end", "size", "start")

    def __init__(self, columns: Sorted, start: int, end: int, size: int) -> None:
        self.columns = columns
        self.start = start
        self.end = end
        self.size = size

    def __len__(self) -> int:
        return self.end - self.start

    def parts(self, limit: int) -> "list[Piece]":
        """This piece, cut so that no part is larger than `limit`, unless it is a single record."""
        if self.size <= limit or len(self) == 1:
            return [self]
        ends = self._ends()
        start, before = 0, 0
        parts = []
        while start < len(ends):
            end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
            after = int(ends[end - 1])
            rows = (self.start + start, self.start + end)
            parts.append(Piece(self.columns, *rows, after - before))
            start, before = end, after
        return parts

    def _ends(self) -> Stamps:
        """The size of all records up to each one."""
        ends: Stamps = RECORD_OVERHEAD_BYTES * np.arange(1, len(self) + 1)
        for column in (self.columns.keys, self.columns.values):
            if column is not None:
                offsets = column.offsets[self.start : self.end + 1]
                ends += offsets[1:] - offsets[0]
        if self.columns.headers is not None:
            rows = self.columns.headers[self.start : self.end]
            ends += np.cumsum([headers_size([row]) for row in rows])
        return ends


class Few:
    """As a Piece, of a chunk of a few hundred records at most: lists of its own.

    Arrays cost some microseconds for each step of each piece, whatever it holds; a small request has
    a piece for every partition, of a handful of records.
    """

    __slots__ = ("headers", "keys", "size", "stamps", "values")

    def __init__(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        stamps: Sequence[int],
        headers: Sequence[Headers] | None,
    ) -> None:
        self.keys = keys
        self.values = values
        self.stamps = stamps
        self.headers = headers
        self.size = RECORD_OVERHEAD_BYTES * len(values) + bytes_of(values)
        self.size += bytes_of(keys or ()) + headers_size(headers or ())

    def __len__(self) -> int:
        return len(self.values)

    def parts(self, limit: int) -> "list[Few] | list[Piece]":
        """As `Piece.parts`."""
        return [self] if self.size <= limit or len(self) == 1 else self.packed().parts(limit)

    def packed(self) -> Piece:
        """The same records as a Piece."""
        keys = None if self.keys is None else BinaryColumn.of(self.keys)
        stamps = np.array(self.stamps, np.int64)
        columns = Sorted(keys, BinaryColumn.of(self.values), stamps, self.headers)
        return Piece(columns, 0, len(self), self.size)


class Batch:
    """Records of one partition, in order, as columns until it is sealed and as bytes from then on.

    Written by the sender's thread only. Other threads read `done` and then, never before it,
    `error` and `base_offset`. Once done nothing of the records is held any more: a
    Delivery that somebody keeps costs little.
    """

    __slots__ = (
        *("attempts", "base_offset", "callbacks", "count", "done", "doubtful", "error", "flying"),
        *("last_error", "number", "observed", "opened_at", "payload", "pieces", "size"),
        *("topic_partition", "turn", "unsigned", "was_oldest"),
    )

    def __init__(self, topic_partition: TopicPartition, number: int, opened_at: float) -> None:
        self.topic_partition = topic_partition
        self.number = number  # of the chunk that its first record was staged in
        self.opened_at = opened_at
        self.pieces: list[Piece | Few] = []
        self.count = 0
        self.size = 0
        self.unsigned: batch_header.UnsealedBatch | None = None  # made ahead of `payload`
        self.payload: bytes | None = None
        self.turn = -1  # among those of the partition that were signed; -1: to be signed
        self.flying = False
        self.was_oldest = False  # of those not done, when it was sent last
        self.doubtful = False  # it was sent, and nobody knows whether it was written
        self.attempts = 0
        self.last_error: FolkmootError | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.done = False
        self.observed = False  # somebody has looked at the outcome, or is told
        self.error: FolkmootError | None = None
        self.base_offset = -1

    def extend(self, piece: Piece | Few) -> None:
        self.pieces.append(piece)
        self.count += len(piece)
        self.size += piece.size
        self.unsigned = None

    def seal(self, codec: Codec, identity: Identity | None) -> bytes:
        """The bytes to send, made once: a batch sent again is the same batch.

        Only one that is certainly not in the log is sealed again, with another identity.
        """
        signature = identity or NOBODY
        if self.payload is None:
            if self.unsigned is None:
                (self.unsigned,) = _compressed([self._packed()], codec)
            self.payload = batch_header.seal(self.unsigned, *signature)
            self.pieces, self.unsigned = [], None
        else:
            self.payload = batch_header.reseal(self.payload, *signature)
        return self.payload

    def _packed(self) -> batch_header.UnsealedBatch:
        return record_batch.pack(_columns(self.pieces, self.count))

    @property
    def is_sealed(self) -> bool:
        return self.payload is not None

    def deliver(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._finish()

    def fail(self, error: FolkmootError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.pieces, self.unsigned = [], None
        self.payload = b""
        self.done = True


def compress_ahead(batches: Sequence[Batch], codec: Codec) -> None:
    """Compress batches that are to be sealed, all at once. What cannot be written is left: `seal` says
    why."""
    packed = []
    for batch in batches:
        with suppress(Exception):  # of any kind, want of memory too
            packed.append((batch, batch._packed()))
    with suppress(Exception):
        bodies = _compressed([each for _, each in packed], codec)
        for (batch, _), unsigned in zip(packed, bodies, strict=True):
            batch.unsigned = unsigned


def _compressed(
    batches: Sequence[batch_header.UnsealedBatch], codec: Codec
) -> list[batch_header.UnsealedBatch]:
    """All of them, those that are worth it compressed."""
    worth = [each.body_bytes > TINY_BYTES for each in batches]
    made = iter(record_batch.compress(list(compress(batches, worth)), codec))
    return [next(made) if is_worth else each for each, is_worth in zip(batches, worth, strict=True)]


def describe(batches: Iterable[Batch]) -> str:
    """How many records of which partitions, or topics, for a log line."""
    counts: dict[str, int] = {}
    for batch in batches:
        topic, partition = batch.topic_partition
        name = str(batch.topic_partition) if partition >= 0 else topic  # none was chosen yet
        counts[name] = counts.get(name, 0) + batch.count
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))


def headers_size(headers: Sequence[Headers]) -> int:
    return sum(len(name.encode()) + len(value or b"") for row in headers for name, value in row)


def _columns(pieces: list[Piece | Few], count: int) -> Columns:
    """All records of the pieces, packed if they are many."""
    few = [piece for piece in pieces if isinstance(piece, Few)]
    if count < PACK_FROM and len(few) == len(pieces):
        return _few_columns(few, count)
    return _many_columns([p.packed() if isinstance(p, Few) else p for p in pieces], count)


def _few_columns(pieces: list[Few], count: int) -> Columns:
    if len(pieces) == 1:
        only = pieces[0]
        return Columns(count, only.keys, only.values, only.stamps, only.headers)
    keys: list[bytes | None] | None = None
    if any(piece.keys is not None for piece in pieces):
        keys = [key for p in pieces for key in p.keys or [None] * len(p)]
    headers: list[Headers] | None = None
    if any(piece.headers is not None for piece in pieces):
        headers = [row for p in pieces for row in p.headers or [()] * len(p)]
    values = [value for piece in pieces for value in piece.values]
    return Columns(count, keys, values, [at for piece in pieces for at in piece.stamps], headers)


def _many_columns(pieces: list[Piece], count: int) -> Columns:
    keys: BinaryRuns | None = None
    if any(piece.columns.keys is not None for piece in pieces):
        keys = BinaryRuns([_keys(piece) for piece in pieces])
    headers: Sequence[Headers] | None = None
    if any(piece.columns.headers is not None for piece in pieces):
        headers = [row for piece in pieces for row in _headers(piece)]
    values = BinaryRuns([piece.columns.values.rows(piece.start, piece.end) for piece in pieces])
    if count < PACK_FROM:
        few_keys = None if keys is None else keys.tolist()
        return Columns(count, few_keys, values.tolist(), _stamps(pieces), headers)
    return Columns(count, keys, values, _stamps(pieces), headers)


def _stamps(pieces: list[Piece]) -> "array[int]":
    stamps = array("q")
    for piece in pieces:
        stamps.frombytes(piece.columns.stamps[piece.start : piece.end].tobytes())
    return stamps


def _keys(piece: Piece) -> BinaryColumn:
    if piece.columns.keys is not None:
        return piece.columns.keys.rows(piece.start, piece.end)
    count = len(piece)
    return BinaryColumn(np.zeros(count + 1, np.int64), b"", np.ones(count, np.bool_))


def _headers(piece: Piece) -> Sequence[Headers]:
    headers = piece.columns.headers
    return [()] * len(piece) if headers is None else headers[piece.start : piece.end]
