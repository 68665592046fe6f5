"""The driver's side: which schema a query reads values with, and which columns that makes."""

from contextlib import closing
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from folkmoot.protocol.errors import ConfigError, FolkmootError, InvalidSchema
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps.columns import columns
from folkmoot.spark_apps.config import LATEST_SCHEMA, SourceConfig
from folkmoot.spark_apps.typed.decoding import ERROR, METADATA, RAW, arrow_fields

CONNECT_TIMEOUT: Final = 10.0


def reader_schema(config: SourceConfig) -> str:
    """The resolved text that option `readerSchema` means now.

    Raises ConfigError, InvalidSchema, SchemaNotFound, SubjectNotFound, VersionNotFound,
    ZooKeeperUnreachable.
    """
    said = config.readerSchema
    if said[:1] in ("{", "[", '"'):
        try:
            return resolve(said)
        except InvalidSchema as error:
            raise InvalidSchema(f"option 'readerSchema': {error}") from None
    with closing(SchemaRegistry(config.zookeeper, timeout=CONNECT_TIMEOUT)) as registry:
        try:
            if said.isdecimal():
                return registry.resolved(int(said))
            subject, version = config.schema_version()
            found = registry.version(
                subject, LATEST_SCHEMA if version == LATEST_SCHEMA else int(version)
            )
            return registry.resolved(found.id, subject=subject)
        except FolkmootError as error:
            raise type(error)(f"option 'readerSchema' is {said!r}: {error}") from None


def typed_columns(text: str, config: SourceConfig) -> StructType:
    """All columns that there are. Raises ConfigError where a field is called like one of ours."""
    offered = columns(config.includeHeaders)
    ours = StructType()
    for name, raw in METADATA.items():
        if raw in offered.names:
            ours.add(name, offered[raw].dataType)
    if config.onDecodeError == "null":
        ours.add(ERROR, StringType()).add(RAW, offered["value"].dataType)
    fields = from_arrow_schema(arrow_fields(text), prefer_timestamp_ntz=True)
    taken = {name.lower() for name in ours.names}
    for name in fields.names:
        if name.lower() in taken:
            raise ConfigError(
                f"field {name!r} of the schema is called like a column of format folkmoot: give a "
                "'readerSchema' without it"
            )
    return StructType([*fields.fields, *ours.fields])
