"""Opening batches to compact them: which records stay, and the batch with only these left."""

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Final, NamedTuple

from msgspec.structs import replace

from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import LEADER_BYTES, BatchHeader
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch, UnsupportedCodec

BYTES_PER_KEY: Final = 160
"""Memory for a key besides its own bytes: an entry in a dict that grows, and two objects."""


class Retained(NamedTuple):
    """The rest of a batch: its bytes, if any record is left, and the numbers of records and tombstones."""

    data: memoryview | bytes
    records: int
    tombstones: int
    closed: bool = False
    """True: it stays as it is, although it may have records to drop."""


class BatchFilter:
    """Opens batches: first to index their keys, then to leave out records with later ones of their key.

    `memory_bytes` bounds the index. Any thread, one at a time.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._latest: dict[bytes, int] = {}
        self._room = memory_bytes

    @property
    def is_full(self) -> bool:
        """True when no more batches should be indexed. The last one may have exceeded the bound."""
        return self._room <= 0

    def index_keys(self, header: BatchHeader, data: memoryview, since: int) -> None:
        """Add the keys of a batch's records, from the offset `since` on."""
        columns = _decode_columns(header, data)
        if columns is None or columns.keys is None:
            return
        offsets = record_batch.offsets_of(header, columns)
        found = {
            key: offset
            for key, offset in zip(columns.keys, offsets, strict=True)
            if key is not None and offset >= since
        }
        new = [key for key in found if key not in self._latest]
        self._latest.update(found)
        self._room -= len(new) * BYTES_PER_KEY + sum(map(len, new))

    def retain(self, header: BatchHeader, data: memoryview, droppable_before: int) -> Retained:
        """Return the batch without records that have later ones, and without old tombstones.

        It keeps its range of offsets, its codec, the header fields of the producer and the leader, and its
        records' own timestamps. Records without a key stay.
        """
        columns = _decode_columns(header, data)
        if columns is None:
            return Retained(data, header.record_count, 0, closed=True)
        if columns.keys is None:
            return Retained(data, header.record_count, 0)
        offsets, latest = record_batch.offsets_of(header, columns), self._latest.get
        keep: list[bool] = []
        tombstones = 0
        for key, offset, is_null in zip(columns.keys, offsets, _nulls(columns.values), strict=True):
            stays = key is None or offset >= latest(key, offset)
            if is_null and key is not None:
                stays = stays and offset >= droppable_before
                tombstones += stays
            keep.append(stays)
        left = sum(keep)
        if left == 0:
            return Retained(b"", 0, 0)
        if left == columns.count:
            return Retained(data, left, tombstones)
        deltas = [offset - header.base_offset for offset in compress(offsets, keep)]
        try:
            rewritten = _rewrite(header, _select_rows(columns, keep, deltas))
        except (BatchTooLarge, CorruptBatch):
            # The list of its offsets takes more room than the dropped records, or the batch is one that
            # no producer of ours writes.
            return Retained(data, header.record_count, tombstones, closed=True)
        return Retained(rewritten, left, tombstones)


def _decode_columns(header: BatchHeader, data: memoryview) -> Columns | None:
    """The columns of a batch. None: it stays as it is, since it is part of a transaction, its codec's library
    is missing, or its body is malformed."""
    if not header.is_ordinary:
        return None
    try:
        # Without flags, so that the records' own timestamps stay where append times count.
        return record_batch.columns_of(replace(header, flags=0), data)
    except (CorruptBatch, UnsupportedCodec):
        return None


def _rewrite(header: BatchHeader, columns: Columns) -> bytes:
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


def _select_rows(columns: Columns, keep: Sequence[bool], deltas: Sequence[int]) -> Columns:
    """The rows that stay."""
    stamps = columns.timestamps
    return Columns(
        count=len(deltas),
        keys=None if columns.keys is None else list(compress(columns.keys, keep)),
        values=list(compress(columns.values, keep)),
        timestamps=stamps if isinstance(stamps, int) else array("q", compress(stamps, keep)),
        headers=None if columns.headers is None else list(compress(columns.headers, keep)),
        offsets=deltas,
    )


def _nulls(values: Sequence[bytes | None]) -> Sequence[bool]:
    """True for each row without a value. A batch's column knows that without making its values."""
    if not isinstance(values, BinaryColumn):
        return [value is None for value in values]
    nulls: list[bool] | None = None if values.nulls is None else values.nulls.tolist()
    return nulls or [False] * len(values)
