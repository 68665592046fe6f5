"""The driver's side of typed writes: the schema that rows are written by."""

import json
from contextlib import closing
from functools import lru_cache
from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from folkmoot.protocol.errors import (
    ConfigError,
    RegistryError,
    SerializationError,
    SubjectNotFound,
    VersionNotFound,
)
from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps.options.config import FROM_COLUMNS, SinkConfig
from folkmoot.spark_apps.typed.decoding import ResolvedSchema
from folkmoot.spark_apps.typed.reader_schema import CONNECT_TIMEOUT, find_schema

RECORD_NAME: Final = "Row"
"""Name of the first schema of a subject; later ones have the name of the one before."""

_TYPES: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def writer_schema(config: SinkConfig, fields: StructType) -> ResolvedSchema:
    """Return the schema by which rows of these columns are written. Raises as `schema_for`, and
    ZooKeeperUnreachable."""
    with closing(SchemaRegistry(config.zookeeper, timeout=CONNECT_TIMEOUT)) as registry:
        return schema_for(fields, config, registry)


_cached_writer_schema = lru_cache(maxsize=16)(writer_schema)


def stream_schema(config: SinkConfig, fields: StructType) -> ResolvedSchema:
    """As `writer_schema`; what stays the same is asked for once, though Spark makes a writer for every batch
    (mostly in one process)."""
    return (writer_schema if config.follows_latest else _cached_writer_schema)(config, fields)


def schema_for(fields: StructType, config: SinkConfig, registry: SchemaRegistry) -> ResolvedSchema:
    """The schema of option `writerSchema`, registered where it is new.

    Raises ConfigError where the columns do not fit it; InvalidSchema, IncompatibleSchema, SchemaNotFound,
    SubjectNotFound, VersionNotFound, OperationNotPermitted.
    """
    option = config.writerSchema
    try:
        if config.is_registering:
            subject = config.writer_subject()
            text = (
                schema_from_columns(fields, _name(registry, subject))
                if option == FROM_COLUMNS
                else option
            )
            number = registry.register(subject, text).id
            schema = ResolvedSchema(registry.resolved(number, subject=subject), number)
        else:
            schema = find_schema(registry, option, config)
    except RegistryError as error:
        raise type(error)(f"option 'writerSchema' is {option!r}: {error}") from None
    try:
        ColumnEncoder(*schema)(
            pa.RecordBatch.from_pylist([], to_arrow_schema(fields, timezone="UTC"))
        )
    except SerializationError as error:
        raise ConfigError(f"the columns do not fit schema {schema.id}: {error}") from None
    return schema


def schema_from_columns(fields: StructType, name: str = RECORD_NAME) -> str:
    """The schema that follows from columns. Raises ConfigError for a type that Avro does not have."""
    return json.dumps(_record(fields, name, ""))


def _record(fields: StructType, name: str, where: str) -> dict[str, Any]:
    schema_fields: list[dict[str, Any]] = []
    for each in fields.fields:
        inside = f"{where}.{each.name}" if where else each.name
        kind = _kind(each.dataType, f"{name}.{each.name}", inside)
        if each.nullable:
            schema_fields.append({"name": each.name, "type": ["null", kind], "default": None})
        else:
            schema_fields.append({"name": each.name, "type": kind})
    return {"type": "record", "name": name, "fields": schema_fields}


def _kind(kind: DataType, name: str, where: str) -> Any:
    """`name` is what a record is called there."""
    if type(kind) in _TYPES:
        return _TYPES[type(kind)]
    if isinstance(kind, DecimalType):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if isinstance(kind, ArrayType):
        items = _kind(kind.elementType, name, f"{where}[]")
        return {"type": "array", "items": ["null", items] if kind.containsNull else items}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        values = _kind(kind.valueType, name, f"{where}[]")
        return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
    if isinstance(kind, StructType):
        return _record(kind, name, where)
    raise ConfigError(
        f"column {where!r} is {kind.simpleString()}, which Avro does not have: cast it, or leave it out"
    )


def _name(registry: SchemaRegistry, subject: str) -> str:
    """That of the subject's latest record, so that this one may follow it."""
    try:
        latest = json.loads(
            registry.resolved(registry.version(subject, "latest").id, subject=subject)
        )
    except (SubjectNotFound, VersionNotFound):
        return RECORD_NAME
    return str(latest["name"]) if isinstance(latest, dict) and "fields" in latest else RECORD_NAME
