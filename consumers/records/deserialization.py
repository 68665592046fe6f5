"""Deserialization of keys and values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import DeserializationError, SerializationError
from folkmoot.protocol.records import TopicPartition
from folkmoot.schemas.values.serialization import (
    KEY,
    VALUE,
    Deserializer,
    Field,
    deserializer,
    reads_schema_id,
)
from folkmoot.schemas.values.wire import prepend_frames


class Skipped(NamedTuple):
    """A skipped record, in place of a view."""

    topic_partition: TopicPartition
    next_offset: int


class Deserialization:
    """A consumer's deserializers; None leaves bytes."""

    def __init__(self, key: Deserializer[Any] | None, value: Deserializer[Any] | None) -> None:
        """Raises ConfigError for an invalid deserializer."""
        self._converts = {KEY: deserializer(KEY, key), VALUE: deserializer(VALUE, value)}
        self._framed = {KEY: reads_schema_id(key), VALUE: reads_schema_id(value)}
        self.is_wanted = key is not None or value is not None

    def rows_of(self, view: RecordBatchView) -> tuple[RecordBatchView, Exception | None]:
        """Return the deserialized rows before the first failure, and its error.

        That is a DeserializationError, or another one that may not come again.
        """
        values, failed = self._deserialize(VALUE, view, view.columns.values)
        rows = view.part(0, len(values))
        if rows.columns.keys is None:
            return _with(rows, None, values), failed
        keys, failed_key = self._deserialize(KEY, rows, rows.columns.keys)
        return _with(rows.part(0, len(keys)), keys, values[: len(keys)]), failed_key or failed

    def raw(self, row: RecordBatchView) -> RecordBatchView:
        """Return a view of one record, with bytes for what cannot be deserialized."""
        keys, values = row.columns.keys, row.columns.values
        if keys is not None:
            keys = self._deserialize(KEY, row, keys)[0] or keys
        return _with(row, keys, self._deserialize(VALUE, row, values)[0] or values)

    def _deserialize(
        self, field: Field, view: RecordBatchView, cells: Sequence[bytes | None]
    ) -> tuple[Sequence[Any], Exception | None]:
        """Return the deserialized cells of a column before the first failure, and its error."""
        convert = self._converts[field]
        if convert is None:
            return cells, None
        if self._framed[field]:
            cells = prepend_frames(field, cells, view.columns.headers)
        converted: list[Any] = []
        try:
            for cell in cells:
                converted.append(convert(view.topic, cell))
        except SerializationError as error:
            row = len(converted)
            failed = DeserializationError(
                f"{view.topic_partition}, offset {view.offsets[row]}: {error}"
            )
            failed.__cause__ = error.__cause__
            (failed.record,) = view.part(row, row + 1)
            failed.field, failed.schema_id = field, error.schema_id
            return converted, failed
        except Exception as error:  # a registry that cannot be reached, for example
            return converted, error
        return converted, None


def _with(
    view: RecordBatchView, keys: Sequence[Any] | None, values: Sequence[Any]
) -> RecordBatchView:
    columns = msgspec.structs.replace(view.columns, keys=keys, values=values)
    return RecordBatchView(view.topic_partition, columns, view.offsets, view.append_time)
