"""Opening batches to compact them: which records stay, and the batch with only these left."""

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from folkmoot.brokers.storage.compaction.offset_map import OffsetMap
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import LEADER_BYTES, BatchHeader
from folkmoot.protocol.columns import BinaryColumn, Columns, Int64s
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch, UnsupportedCodec

_Mask = npt.NDArray[np.bool_]


class Retained(NamedTuple):
    """What is left of a batch: its bytes, none at all if no record is; how much that was."""

    data: memoryview | bytes
    records: int
    tombstones: int
    closed: bool = False
    """It stays as it is, whatever keys it may have."""


class BatchFilter:
    """Opens batches: first to index their keys, then to leave out what `keys` has later records of."""

    def __init__(self, memory_bytes: int) -> None:
        self.keys = OffsetMap(memory_bytes)

    def index_keys(self, header: BatchHeader, data: memoryview, since: int) -> None:
        """Add the keys of a batch's records, from the offset `since` on."""
        columns = _opened(header, data)
        if columns is None or columns.keys is None:
            return
        keys, absent = _keys(columns.keys)
        chosen = _offsets(header, columns)
        digests = self.keys.digests(keys)
        wanted = chosen >= since
        if absent is not None:
            wanted &= ~absent
        if not wanted.all():
            digests = type(digests)(digests.first[wanted], digests.second[wanted])
            chosen = chosen[wanted]
        self.keys.add(digests, chosen)

    def retain(self, header: BatchHeader, data: memoryview, droppable_before: int) -> Retained:
        """The batch without the records that have later ones, and without old tombstones.

        It keeps its range of offsets, its codec, what the producer and the leader wrote into its
        header, and its records' own timestamps. Records without a key stay.
        """
        columns = _opened(header, data)
        if columns is None:
            return Retained(data, header.record_count, 0, closed=True)
        if columns.keys is None:
            return Retained(data, header.record_count, 0)
        keys, absent = _keys(columns.keys)
        offsets = _offsets(header, columns)
        keep = offsets >= self.keys.latest(self.keys.digests(keys))
        nulls = _nulls(columns.values)
        if nulls is not None:
            keep &= ~nulls | (offsets >= droppable_before)
        if absent is not None:
            keep |= absent
            nulls = None if nulls is None else nulls & ~absent
        tombstones = 0 if nulls is None else int(np.count_nonzero(nulls & keep))
        left = int(np.count_nonzero(keep))
        if left == 0:
            return Retained(b"", 0, 0)
        if left == columns.count:
            return Retained(data, left, tombstones)
        try:
            rewritten = _rewritten(header, _selected(columns, keep, offsets - header.base_offset))
        except (BatchTooLarge, CorruptBatch):
            # To say which offsets are left takes more room than the records gave, or its producer has
            # written what nobody else may write.
            return Retained(data, header.record_count, tombstones, closed=True)
        return Retained(rewritten, left, tombstones)


def _opened(header: BatchHeader, data: memoryview) -> Columns | None:
    """The columns of a batch; None: it stays as it is, uncounted.

    That is one of a transaction, whose end is not known here; and one that cannot be opened, since its
    codec's library is not there or its body is not what it should be.
    """
    if not header.is_ordinary:
        return None
    try:
        # Without flags: where append times count, the records' own ones are to stay all the same.
        return record_batch.columns_of(msgspec.structs.replace(header, flags=0), data)
    except (CorruptBatch, UnsupportedCodec):
        return None


def _rewritten(header: BatchHeader, columns: Columns) -> bytes:
    new = record_batch.encode(
        columns,
        header.codec,
        schema_id=header.schema_id,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        continues=header.continues_sequences,
        last_offset_delta=header.last_offset_delta,
    )
    leader = batch_header.leader_part(
        *(header.base_offset, len(new), header.leader_epoch, header.append_time),
        stamps=header.uses_append_time,
    )
    return leader + new[LEADER_BYTES:]


def _selected(columns: Columns, keep: _Mask, deltas: Int64s) -> Columns:
    """The rows that are to stay, column by column."""
    mask = keep.tolist()
    stamps = columns.timestamps
    if isinstance(stamps, array):
        times = array("q")
        times.frombytes(np.frombuffer(stamps, np.int64)[keep].tobytes())
        stamps = times
    return Columns(
        count=sum(mask),
        keys=None if columns.keys is None else list(compress(columns.keys, mask)),
        values=list(compress(columns.values, mask)),
        timestamps=stamps,
        headers=None if columns.headers is None else list(compress(columns.headers, mask)),
        offsets=deltas[keep].tolist(),
    )


def _keys(cells: Sequence[bytes | None]) -> tuple[Sequence[bytes], _Mask | None]:
    """All keys, and where there is none, which counts as empty among them."""
    keys = list(cells)
    if None not in keys:
        return keys, None  # type: ignore[return-value]  # just looked
    return [key or b"" for key in keys], np.fromiter((key is None for key in keys), np.bool_)


def _nulls(values: Sequence[bytes | None]) -> _Mask | None:
    """Where there is no value; None if there is one everywhere."""
    if isinstance(values, BinaryColumn):
        return values.nulls
    if None not in values:
        return None
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def _offsets(header: BatchHeader, columns: Columns) -> Int64s:
    return np.asarray(record_batch.offsets_of(header, columns), np.int64)
