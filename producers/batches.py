"""A batch of one partition: it grows, is sealed when it is sent, and ends delivered or failed."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from folkmoot.producers.cells import Cells
from folkmoot.protocol import batch as batch_format
from folkmoot.protocol.codecs import Codec
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.packed import Packed
from folkmoot.protocol.records import Headers, TopicPartition

PACK_FROM: Final = 64
"""So many records are worth packing: for fewer, lists are quicker to write and to read."""

Stamps = npt.NDArray[np.int64]


class Piece:
    """Records of one chunk that go to one partition, in order. `size` counts overhead as well.

    `keys` and `values` are both lists or tuples, as `send` staged them, or both `Cells` (keys perhaps
    None), as `send_batch` did.
    """

    __slots__ = ("headers", "keys", "size", "stamps", "values")

    def __init__(
        self,
        keys: Sequence[bytes | None] | Cells | None,
        values: Sequence[bytes | None] | Cells,
        stamps: Stamps,
        headers: Sequence[Headers] | None,
        size: int,
    ) -> None:
        self.keys = keys
        self.values = values
        self.stamps = stamps
        self.headers = headers
        self.size = size

    def parts(self, limit: int) -> "Iterator[Piece]":
        """This piece, cut so that no part is larger than `limit`, unless it is a single record."""
        if self.size <= limit or len(self.values) == 1:
            yield self
            return
        sizes = self._sizes()
        overhead = (self.size - sum(sizes)) // len(sizes)
        start, size, left = 0, 0, self.size
        for position, record in enumerate(sizes):
            if position > start and size + record + overhead > limit:
                yield self._part(start, position, size)
                start, size, left = position, 0, left - size
            size += record + overhead
        yield self._part(start, len(sizes), left)

    def _sizes(self) -> list[int]:
        keys, values = self.keys, self.values
        if isinstance(values, Sequence):
            assert isinstance(keys, Sequence)
            return [len(k or b"") + len(v or b"") for k, v in zip(keys, values, strict=True)]
        sizes = np.maximum(values.lengths, 0)
        if keys is not None and not isinstance(keys, Sequence):
            sizes = sizes + np.maximum(keys.lengths, 0)
        listed: list[int] = sizes.tolist()
        return listed

    def _part(self, start: int, end: int, size: int) -> "Piece":
        def rows(column: Any) -> Any:
            return column[start:end] if isinstance(column, Sequence) else column.rows(start, end)

        keys = None if self.keys is None else rows(self.keys)
        headers = None if self.headers is None else self.headers[start:end]
        return Piece(keys, rows(self.values), self.stamps[start:end], headers, size)


class Batch:
    """Records of one partition, in order, as columns until it is sealed and as bytes from then on.

    Written by the sender's thread only. Other threads read `done` and then, never before it,
    `error` and `base_offset`. Once done nothing of the records is held any more: a
    Delivery that somebody keeps costs little.
    """

    __slots__ = (
        *("attempts", "base_offset", "callbacks", "count", "done", "error", "last_error"),
        *("number", "observed", "opened_at", "payload", "pieces", "size", "topic_partition"),
    )

    def __init__(self, topic_partition: TopicPartition, number: int, opened_at: float) -> None:
        self.topic_partition = topic_partition
        self.number = number  # of the chunk that its first record was staged in
        self.opened_at = opened_at
        self.pieces: list[Piece] = []
        self.count = 0
        self.size = 0
        self.payload: bytes | None = None
        self.attempts = 0
        self.last_error: FolkmootError | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.done = False
        self.observed = False  # somebody has looked at the outcome, or is told
        self.error: FolkmootError | None = None
        self.base_offset = -1

    def extend(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.count += len(piece.values)
        self.size += piece.size

    def seal(self, codec: Codec) -> bytes:
        """The bytes to send, made once: a batch sent again is the same batch."""
        if self.payload is None:
            self.payload = batch_format.encode(_columns(self.pieces, self.count), codec)
            self.pieces = []
        return self.payload

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
        self.pieces = []
        self.payload = b""
        self.done = True


def _columns(pieces: list[Piece], count: int) -> Columns:
    """All records of the pieces, packed if they are many or one of them came as a column."""
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    if all(isinstance(piece.values, Sequence) for piece in pieces):
        keys = _listed([piece.keys for piece in pieces])
        values = _listed([piece.values for piece in pieces])
        if keys.count(None) == count:
            keys = None
        if count >= PACK_FROM:
            keys = None if keys is None else Packed.of(keys)
            values = Packed.of(values)
    else:
        values = Packed.joined([_packed(piece.values, 0) for piece in pieces])
        keys = Packed.joined([_packed(piece.keys, len(piece.values)) for piece in pieces])
        if keys.nulls is not None and keys.nulls.all():
            keys = None
    stamps = np.concatenate([piece.stamps for piece in pieces])
    headers = None
    if any(piece.headers for piece in pieces):
        headers = _listed([piece.headers or [()] * len(piece.values) for piece in pieces])
    return Columns(count, keys, values, array("q", stamps.tobytes()), headers)


def _listed(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def _packed(column: Sequence[bytes | None] | Cells | None, count: int) -> Packed:
    if column is None:
        return Packed(np.zeros(count + 1, np.int64), b"", np.ones(count, np.bool_))
    return Packed.of(column) if isinstance(column, Sequence) else column.packed()
