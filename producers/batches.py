"""A batch of one partition: it grows, is sealed when it is sent, and ends delivered or failed."""

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from folkmoot.protocol import batch as batch_format
from folkmoot.protocol.codecs import Codec
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import Headers, TopicPartition

Stamps = npt.NDArray[np.int64]


class Piece:
    """Records of one chunk that go to one partition, in order. `size` counts overhead as well."""

    __slots__ = ("headers", "keys", "size", "stamps", "values")

    def __init__(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
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
        sizes = [
            len(key or b"") + len(value or b"")
            for key, value in zip(self.keys, self.values, strict=True)
        ]
        overhead = (self.size - sum(sizes)) // len(sizes)
        start, size, left = 0, 0, self.size
        for position, record in enumerate(sizes):
            if position > start and size + record + overhead > limit:
                yield self._part(start, position, size)
                start, size, left = position, 0, left - size
            size += record + overhead
        yield self._part(start, len(sizes), left)

    def _part(self, start: int, end: int, size: int) -> "Piece":
        rows = slice(start, end)
        headers = None if self.headers is None else self.headers[rows]
        return Piece(self.keys[rows], self.values[rows], self.stamps[rows], headers, size)


class Batch:
    """Records of one partition, in order, as columns until it is sealed and as bytes from then on.

    Written by the sender's thread only. Other threads read `done` and then, never before it,
    `error` and `base_offset`. Once done nothing of the records is held any more: a
    Delivery that somebody keeps costs little.
    """

    __slots__ = (
        *("attempts", "base_offset", "callbacks", "count", "done", "error"),
        *("headers", "keys", "last_error", "number", "observed", "opened_at", "payload"),
        *("size", "stamps", "topic_partition", "values"),
    )

    def __init__(self, topic_partition: TopicPartition, number: int, opened_at: float) -> None:
        self.topic_partition = topic_partition
        self.number = number  # of the chunk that its first record was staged in
        self.opened_at = opened_at
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.stamps: list[Stamps] = []
        self.headers: list[Headers] | None = None
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
        if piece.headers is not None and self.headers is None:
            self.headers = [()] * self.count
        if self.headers is not None:
            self.headers.extend(piece.headers or [()] * len(piece.values))
        self.keys.extend(piece.keys)
        self.values.extend(piece.values)
        self.stamps.append(piece.stamps)
        self.count += len(piece.values)
        self.size += piece.size

    def seal(self, codec: Codec) -> bytes:
        """The bytes to send, made once: a batch sent again is the same batch."""
        if self.payload is None:
            stamps = np.concatenate(self.stamps)
            columns = Columns(
                self.count,
                None if self.keys.count(None) == self.count else self.keys,
                self.values,
                array("q", stamps.tobytes()),
                self.headers,
            )
            self.payload = batch_format.encode(columns, codec)
            self._drop_columns()
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
        self._drop_columns()
        self.payload = b""
        self.done = True

    def _drop_columns(self) -> None:
        self.keys, self.values, self.stamps, self.headers = [], [], [], None
