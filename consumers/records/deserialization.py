"""Keys and values as the application wants them, made of the bytes that were read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import SerializationError
from folkmoot.schemas.values.serialization import KEY, VALUE, Convert, Deserializer, deserializer


class Deserialization:
    """What a consumer was given to make keys and values with; None leaves them bytes."""

    def __init__(self, key: Deserializer[Any] | None, value: Deserializer[Any] | None) -> None:
        """Raises ConfigError for what is no deserializer."""
        self._key = deserializer(KEY, key)
        self._value = deserializer(VALUE, value)
        self.is_wanted = self._key is not None or self._value is not None

    def rows_of(self, view: RecordBatchView) -> tuple[RecordBatchView, Exception | None]:
        """The view with what is made of its bytes, up to the first row of which nothing can be made.

        → and why, naming partition and offset; None if all could be made.
        """
        columns = view.columns
        values, failed = _made(self._value, view, columns.values)
        keys = columns.keys
        if keys is not None:
            keys, failed_key = _made(self._key, view, keys[: len(values)])
            failed = failed_key or failed
            values = values[: len(keys)]
        count = len(values)
        made = view.part(0, count)
        columns = msgspec.structs.replace(made.columns, keys=keys, values=values)
        return RecordBatchView(
            view.topic_partition, columns, made.offsets, view.append_time
        ), failed


def _made(
    convert: Convert | None, view: RecordBatchView, cells: Sequence[bytes | None]
) -> tuple[Sequence[Any], Exception | None]:
    if convert is None:
        return cells, None
    made: list[Any] = []
    try:
        for cell in cells:
            made.append(convert(view.topic, cell))
    except SerializationError as error:
        where = f"{view.topic_partition}, offset {view.offsets[len(made)]}"
        failed = SerializationError(f"{where}: {error}")
        failed.__cause__ = error.__cause__
        return made, failed
    except Exception as error:  # a registry that cannot be reached, for example
        return made, error
    return made, None
