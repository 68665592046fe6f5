"""The executor's side of typed writes: values in place of the columns that they are made of."""

from functools import cache
from typing import Any

import numpy as np

from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.spark_apps.typed.decoding import METADATA, ResolvedSchema


def encode_columns(batch: pa.RecordBatch, schema: ResolvedSchema) -> dict[str, Any]:
    """Columns as they are called where values are bytes. A row of nulls is a tombstone, as it is read.

    Raises SerializationError that names the row and the column that do not fit, BatchTooLarge.
    """
    fields = batch.select([name for name in batch.schema.names if name not in METADATA])
    columns: dict[str, Any] = {
        METADATA[name]: batch.column(name) for name in batch.schema.names if name in METADATA
    }
    if not all(column.null_count for column in fields.columns):
        return columns | {"value": _encoder(schema)(fields)}
    valid: list[Any] = list(fields.columns)
    is_row = np.logical_or.reduce([column.is_valid().to_numpy(False) for column in valid])
    values = _encoder(schema)(fields.take(pa.array(np.flatnonzero(is_row))))
    indexes = pa.array(np.cumsum(is_row) - 1, mask=~is_row)
    return columns | {"value": values.take(indexes)}


@cache
def _encoder(schema: ResolvedSchema) -> ColumnEncoder:
    return ColumnEncoder(*schema)
