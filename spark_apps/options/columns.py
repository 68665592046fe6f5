"""The columns of the source, those of Spark's Kafka source, and which of them a reader is to give."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from folkmoot.protocol.errors import ConfigError

COLUMNS = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
_HEADER = StructType().add("key", StringType()).add("value", BinaryType())


def columns(headers: bool) -> StructType:
    """All that there are; `headers` as with the option includeHeaders."""
    all_columns = StructType(list(COLUMNS.fields))
    return all_columns.add("headers", ArrayType(_HEADER)) if headers else all_columns


def select_columns(schema: StructType, offered: StructType) -> tuple[str, ...]:
    """The names in a schema that a user has given, or Spark. Raises ConfigError for what is none of ours."""
    kinds = {field.name: field.dataType for field in offered.fields}
    for field in schema.fields:
        if field.name == "headers" and "headers" not in kinds:
            raise ConfigError("column 'headers' is there with option includeHeaders=true")
        if field.name not in kinds:
            raise ConfigError(f"there is no column {field.name!r}: choose from {', '.join(kinds)}")
        kind = kinds[field.name]
        if field.dataType != kind:
            raise ConfigError(
                f"column {field.name!r} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after it was read"
            )
    return tuple(schema.names)
