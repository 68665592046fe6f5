"""The driver's side: which schema a query reads values with, and which columns that makes."""

from contextlib import closing
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from folkmoot.coordination import topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.schemas.names import context_of
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    InvalidSchema,
    UnknownTopicOrPartition,
)
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps.options.columns import columns
from folkmoot.spark_apps.options.config import LATEST_SCHEMA, SinkConfig, SourceConfig, is_json
from folkmoot.spark_apps.typed.decoding import ERROR, METADATA, RAW, ResolvedSchema, arrow_fields

CONNECT_TIMEOUT: Final = 10.0


def reader_schema(config: SourceConfig) -> ResolvedSchema:
    """The schema that option `readerSchema` means now.

    Raises ConfigError, InvalidSchema, InvalidSubject, SchemaNotFound, SubjectNotFound, VersionNotFound,
    ZooKeeperUnreachable.
    """
    option = config.readerSchema
    if is_json(option):
        try:
            context_of(config.subject_of_ids)
            return ResolvedSchema(resolve(option))
        except InvalidSchema as error:
            raise InvalidSchema(f"option 'readerSchema': {error}") from None
    with closing(SchemaRegistry(config.zookeeper, timeout=CONNECT_TIMEOUT)) as registry:
        try:
            return find_schema(registry, option, config)
        except FolkmootError as error:
            raise type(error)(f"option 'readerSchema' is {option!r}: {error}") from None


def check_dead_letters(config: SourceConfig) -> None:
    """Raises UnknownTopicOrPartition, ZooKeeperUnreachable."""
    topic = config.deadLetterTopic
    if not topic:
        return
    connect = connector(config.zookeeper)
    with closing(ZooKeeperDiscovery(connect, CONNECT_TIMEOUT, config.listener)) as finder:
        if finder.ask(topics.read(topic)) is None:
            raise UnknownTopicOrPartition(
                f"option 'deadLetterTopic': topic {topic} does not exist: create it with "
                f"`folkmoot topic create {topic}`"
            )


def find_schema(
    registry: SchemaRegistry, option: str, config: SourceConfig | SinkConfig
) -> ResolvedSchema:
    """The schema of an id, or of a subject's version. Raises what the registry raises."""
    if option.isdecimal():
        text = registry.resolved(int(option), subject=config.subject_of_ids)
        return ResolvedSchema(text, int(option))
    subject, number = config.schema_version()
    version = registry.version(subject, LATEST_SCHEMA if number == LATEST_SCHEMA else int(number))
    return ResolvedSchema(registry.resolved(version.id, subject=subject), version.id)


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
    used_names = {name.lower() for name in ours.names}
    for name in fields.names:
        if name.lower() in used_names:
            raise ConfigError(
                f"field {name!r} of the schema is called like a column of format folkmoot: give a "
                "'readerSchema' without it"
            )
    return StructType([*fields.fields, *ours.fields])
