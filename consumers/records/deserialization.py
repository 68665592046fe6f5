"""Keys and values as the application wants them, made of the bytes that were read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import DeserializationError, SerializationError
from folkmoot.protocol.records import TopicPartition
from folkmoot.schemas.values.serialization import (
    KEY,
    VALUE,
    Convert,
    Deserializer,
    Field,
    deserializer,
    reads_schema_id,
)
from folkmoot.schemas.values.wire import framed


class Skipped:
    """A record that is not handed out; in place of a view of it."""

    __slots__ = ("next_offset", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, offset: int) -> None:
        self.topic_partition = topic_partition
        self.next_offset = offset + 1

    def __len__(self) -> int:
        return 0


class Deserialization:
    """What a consumer was given to make keys and values with; None leaves them bytes."""

    def __init__(self, key: Deserializer[Any] | None, value: Deserializer[Any] | None) -> None:
        """Raises ConfigError for what is no deserializer."""
        self._key = deserializer(KEY, key)
        self._value = deserializer(VALUE, value)
        self._framed = {KEY: reads_schema_id(key), VALUE: reads_schema_id(value)}
        self.is_wanted = self._key is not None or self._value is not None

    def rows_of(self, view: RecordBatchView) -> tuple[RecordBatchView, Exception | None]:
        """The view with what is made of its bytes, up to the first row of which nothing can be made.

        → and why: a DeserializationError, or what may have gone by the next time; None if all could be
        made.
        """
        values, failed = _made(VALUE, self._value, view, self._values_of(view))
        keys = self._keys_of(view)
        if keys is not None:
            keys, failed_key = _made(KEY, self._key, view, keys[: len(values)])
            failed = failed_key or failed
            values = values[: len(keys)]
        return _with(view.part(0, len(values)), keys, values), failed

    def raw(self, row: RecordBatchView) -> RecordBatchView:
        """A view of one record, with the bytes where nothing can be made of them."""
        values, _ = _made(VALUE, self._value, row, self._values_of(row))
        keys = self._keys_of(row)
        if keys is not None:
            keys = _made(KEY, self._key, row, keys)[0] or row.columns.keys
        return _with(row, keys, values or row.columns.values)

    def _values_of(self, view: RecordBatchView) -> Sequence[bytes | None]:
        """As the deserialiser takes them."""
        values, headers = view.columns.values, view.columns.headers
        return framed(VALUE, values, headers) if self._framed[VALUE] else values

    def _keys_of(self, view: RecordBatchView) -> Sequence[bytes | None] | None:
        keys, headers = view.columns.keys, view.columns.headers
        return framed(KEY, keys, headers) if keys is not None and self._framed[KEY] else keys


def _with(
    view: RecordBatchView, keys: Sequence[Any] | None, values: Sequence[Any]
) -> RecordBatchView:
    columns = msgspec.structs.replace(view.columns, keys=keys, values=values)
    return RecordBatchView(view.topic_partition, columns, view.offsets, view.append_time)


def _made(
    field: Field, convert: Convert | None, view: RecordBatchView, cells: Sequence[bytes | None]
) -> tuple[Sequence[Any], Exception | None]:
    if convert is None:
        return cells, None
    made: list[Any] = []
    try:
        for cell in cells:
            made.append(convert(view.topic, cell))
    except SerializationError as error:
        row = len(made)
        failed = DeserializationError(
            f"{view.topic_partition}, offset {view.offsets[row]}: {error}"
        )
        failed.__cause__ = error.__cause__
        (failed.record,) = view.part(row, row + 1)
        failed.field, failed.schema_id = field, error.schema_id
        return made, failed
    except Exception as error:  # a registry that cannot be reached, for example
        return made, error
    return made, None
