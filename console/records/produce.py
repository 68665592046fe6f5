"""`folkmoot produce`: lines of standard input, or of a file, as records."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from folkmoot.console.files import read_text
from folkmoot.console.options.cluster import Cluster, with_cluster
from folkmoot.console.options.declared import client_options, set_option
from folkmoot.console.options.names import topic_argument
from folkmoot.console.options.values import FILE, schema_context_option
from folkmoot.console.records.formats.record_json import OutgoingRecord, parse_record
from folkmoot.console.records.formats.values import Decoder, json_of
from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    SerializationError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.producers.producer import Producer

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Records that a slow broker takes within `--timeout`; further lines wait to be read."""
_SCHEMA: Final = "FILE.avsc|latest|ID"

_Encode = Callable[[Any], bytes]
_Typed = Callable[[Any], Any]


@click.command()
@topic_argument
@click.option("--file", type=FILE, help="Read this file, not standard input.")
@click.option(
    *("-i", "--input", "form"),
    type=click.Choice(("text", "json")),
    default="text",
    help="text: a value a line; json: what `consume -o json` writes.",
)
@click.option("--key-separator", metavar="TEXT", help="The text that ends the key of a line.")
@click.option("--partition", type=int, metavar="P", help="Send every record to this partition.")
@click.option(
    *("--header", "headers"),
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option(
    "--key-schema", metavar=_SCHEMA, help="Keys are JSON, sent as Avro; as --value-schema."
)
@click.option(
    "--value-schema",
    metavar=_SCHEMA,
    help="Values are JSON, sent as Avro by this schema, which is registered under TOPIC-value, or by the "
    "latest one there, or by that of an id.",
)
@schema_context_option
@click.option("--acks", type=click.Choice(("0", "1", "all")), default="all")
@click.option("--compression", default="zstd", help="none, zstd, lz4, gzip or snappy.")
@set_option("producer")
@with_cluster
def command(
    cluster: Cluster,
    topic: str,
    file: Path | None,
    form: str,
    key_separator: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    key_schema: str | None,
    value_schema: str | None,
    schema_context: str,
    acks: str,
    compression: str,
    settings: tuple[str, ...],
) -> int:
    """Send lines of standard input, or of a file, as records."""
    from folkmoot.producers.config import ProducerConfig
    from folkmoot.producers.producer import Producer

    # All that can be wrong besides a line is found before the first record is sent.
    if key_separator == "":
        raise ConfigError("--key-separator is empty: give the text that ends a key")
    if key_separator and form == "json":
        raise ConfigError("with -i json each line has its key: leave out --key-separator")
    schemas = {"key": key_schema, "value": value_schema}
    if any(schemas.values()) and not cluster.zookeeper:
        raise ConfigError("schemas are in ZooKeeper: use --zookeeper")
    if key_schema and not key_separator and form == "text":
        raise ConfigError("--key-schema is for lines with keys: give --key-separator, or -i json")
    pairs = [_header(each) for each in headers]
    own = {
        **cluster.client_options(),
        "acks": acks if acks == "all" else int(acks),
        "compression": compression,
        "client_id": "folkmoot-produce",
        "delivery_timeout": cluster.timeout,
        "max_block": cluster.timeout,
        "buffer_bytes": BUFFER_BYTES,
    }
    if value_schema:
        own["value_serializer"] = _PreEncoded()
    options = client_options(ProducerConfig, own, settings)
    with ExitStack() as stack:
        source = _source(file, stack)
        arguments = {field: _schema(name) for field, name in schemas.items() if name}
        producer = stack.enter_context(Producer(**options))
        _check_partition(producer, topic, partition)
        encoders = _encoders(cluster, topic, schema_context, arguments, stack)
        if form == "json":
            decode = stack.enter_context(Decoder.of(cluster, schema_context))
            field_encoders = encoders.get("value"), encoders.get("key")
            records = (parse_record(line, decode, *field_encoders) for line in source)
        else:
            records = (_parse_text(line, key_separator or "", encoders) for line in source)
        with sigterm_like_ctrl_c():
            _send_all(producer, topic, partition, records, pairs)
    return 0


class _PreEncoded:
    """Values that are serialised before they are sent, with their schema's id."""

    writes_schema_id = True

    def serialize(self, _topic: str, value: bytes) -> bytes:
        return value


def _send_all(
    producer: "Producer",
    topic: str,
    partition: int | None,
    records: Iterator[OutgoingRecord],
    headers: Sequence[tuple[str, bytes]],
) -> None:
    """Send line after line; however it ends, what was sent before is delivered, and counted."""
    sent = 0
    try:
        try:
            for value, key, record_headers, timestamp in records:
                producer.send(topic, value, key, partition, [*record_headers, *headers], timestamp)
                sent += 1
        except (FolkmootError, ValueError) as error:
            producer.flush()
            before = f"lines sent before it: {sent}, after it: none"
            kind = type(error) if isinstance(error, FolkmootError) else SerializationError
            raise kind(f"line {sent + 1}: {error} ({before})") from None
        producer.flush()
    except KeyboardInterrupt:
        producer.flush()
        _print_count(sent, topic)
        raise
    _print_count(sent, topic)


def _print_count(sent: int, topic: str) -> None:
    print(f"produced {counted(sent, 'record')} to {topic}", file=sys.stderr)


def _source(file: Path | None, stack: ExitStack) -> IO[bytes]:
    if file is None:
        return sys.stdin.buffer
    try:
        source: IO[bytes] = file.open("rb")
    except OSError as error:
        raise ConfigError(f"--file {file} cannot be read: {error.strerror}") from None
    return stack.enter_context(source)


def _schema(text: str) -> dict[str, Any]:
    """Return the arguments that name a schema to a serialiser."""
    if text == "latest":
        return {"version": "latest"}
    if text.isdecimal():
        return {"id": int(text)}
    return {"schema": read_text(text)}


def _check_partition(producer: "Producer", topic: str, partition: int | None) -> None:
    """Raise UnknownTopicOrPartition if there is no such topic or partition."""
    count = len(producer.partitions_of(topic))
    if partition is not None and not 0 <= partition < count:
        raise UnknownTopicOrPartition(
            f"partition {partition} does not exist: topic {topic} has {count}, numbered from 0"
        )


def _parse_text(line: bytes, separator: str, encoders: dict[str, _Encode]) -> OutgoingRecord:
    """Read a line of text: a value, with a key before it where there is a separator."""
    encode, encode_key = encoders.get("value"), encoders.get("key")
    value, key = line.removesuffix(b"\n").removesuffix(b"\r"), None
    if separator:
        key, found, value = value.partition(os.fsencode(separator))
        if not found:
            raise SerializationError(f"there is no {separator!r} after a key")
        key = key if encode_key is None else encode_key(json_of(key))
    return OutgoingRecord(value if encode is None else encode(json_of(value)), key)


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError(f"--header {text!r} is not NAME=VALUE")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--header {text!r}: its name is not UTF-8") from None
    return name, os.fsencode(value)  # the very bytes that were given, text or not


def _encoders(
    cluster: Cluster,
    topic: str,
    context: str,
    schemas: dict[str, dict[str, Any]],
    stack: ExitStack,
) -> dict[str, _Encode]:
    """Return what makes a key or value of JSON, by schemas that are registered here."""
    if not schemas:
        return {}
    from folkmoot.console.records.formats.typed_json import TypedJson
    from folkmoot.schemas.registry.schema_registry import SchemaRegistry
    from folkmoot.schemas.values.serializer import AvroSerializer

    registry = stack.enter_context(SchemaRegistry(cluster.address, timeout=cluster.timeout))
    found: dict[str, _Encode] = {}
    for field, arguments in schemas.items():
        subject = f"{context}{topic}-{field}"
        serializer = AvroSerializer(registry, subject=subject, **arguments)
        number = serializer.prepare(topic)  # registers it, or raises what is wrong with it
        typed = TypedJson(registry.resolved(number, subject=subject))
        found[field] = partial(_encode, typed, partial(serializer.serialize, topic))
    return found


def _encode(typed: _Typed, serialize: _Encode, value: Any) -> bytes:
    return serialize(typed(value))
