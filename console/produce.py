"""`folkmoot produce`: lines of standard input, or of a file, as records."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from folkmoot.console.formats.record_json import Draft, draft_of
from folkmoot.console.formats.values import Decoder, json_of
from folkmoot.console.options import (
    add_cluster,
    add_schema_context,
    add_set,
    cluster_of,
    set_of,
    sigterm_like_ctrl_c,
    text_of,
    whole_number,
)
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    SerializationError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name
from folkmoot.protocol.quantities import counted

if TYPE_CHECKING:
    from folkmoot.producers.producer import Producer

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""No more than a slow broker takes in within `--timeout`; what is read beyond it waits."""

_Encode = Callable[[Any], bytes]
_Typed = Callable[[Any], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_cluster(parser)
    parser.add_argument("--file", type=Path, metavar="FILE", help="read this, not standard input")
    parser.add_argument(
        *("-i", "--input"),
        choices=("text", "json"),
        default="text",
        help="text (default): a value a line; json: what `consume -o json` writes, with keys, tombstones, "
        "headers and timestamps",
    )
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="what stands before it in a line is the key"
    )
    parser.add_argument(
        "--partition", type=whole_number, metavar="P", help="for all records, not by key"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="on every record"
    )
    for field in ("key", "value"):
        parser.add_argument(
            f"--{field}-schema",
            metavar="FILE.avsc|latest|ID",
            help=f"{field}s are JSON, sent as Avro by this schema, which is registered under "
            f"TOPIC-{field}; or by the latest one there, or by that of an id",
        )
    add_schema_context(parser)
    parser.add_argument("--acks", choices=("0", "1", "all"), default="all", help="default: all")
    parser.add_argument(
        "--compression", default="zstd", help="zstd (default), none, lz4, gzip or snappy"
    )
    add_set(parser, "producer")


def run(args: argparse.Namespace) -> int:
    """Whatever can be wrong besides a line is found before the first record is sent."""
    from folkmoot.producers.config import ProducerConfig
    from folkmoot.producers.producer import Producer

    check_name("topic", args.topic)
    if args.key_separator == "":
        raise ConfigError("--key-separator is empty: give the text that ends a key")
    if args.key_separator and args.input == "json":
        raise ConfigError("with -i json each line says its key: leave out --key-separator")
    cluster = cluster_of(args)
    schemas = {"key": args.key_schema, "value": args.value_schema}
    if any(schemas.values()) and not args.zookeeper:
        raise ConfigError("schemas are in ZooKeeper: use --zookeeper")
    if args.key_schema and not args.key_separator and args.input == "text":
        raise ConfigError("--key-schema is for lines with keys: give --key-separator, or -i json")
    headers = [_header(each) for each in args.header]
    own = {
        **cluster,
        "acks": args.acks if args.acks == "all" else int(args.acks),
        "compression": args.compression,
        "client_id": "folkmoot-produce",
        "delivery_timeout": args.timeout,
        "max_block": args.timeout,
        "buffer_bytes": BUFFER_BYTES,
    }
    if args.value_schema:
        own["value_serializer"] = _Encoded()
    options = set_of(args, ProducerConfig, own)
    with ExitStack() as stack:
        source = _source(args, stack)
        arguments = {field: _schema(schemas[field]) for field in schemas if schemas[field]}
        producer = stack.enter_context(Producer(**options))
        _check_partition(args, producer)
        read = _reader(args, _encoders(args, arguments, stack), stack)
        with sigterm_like_ctrl_c():
            _send_all(args, producer, map(read, source), headers)
    return 0


class _Encoded:
    """Values that a serialiser has made before they are sent, with their schema's id."""

    writes_schema_id = True

    def serialize(self, _topic: str, value: bytes) -> bytes:
        return value


def _send_all(
    args: argparse.Namespace,
    producer: "Producer",
    drafts: Iterator[Draft],
    headers: list[tuple[str, bytes]],
) -> None:
    """Send line after line; however it ends, what was sent before is delivered, and counted."""
    sent = 0
    try:
        try:
            for value, key, its_headers, timestamp in drafts:
                both = [*its_headers, *headers]
                producer.send(args.topic, value, key, args.partition, both, timestamp)
                sent += 1
        except (FolkmootError, ValueError) as error:
            producer.flush()
            before = f"lines sent before it: {sent}, after it: none"
            kind = type(error) if isinstance(error, FolkmootError) else SerializationError
            raise kind(f"line {sent + 1}: {error} ({before})") from None
        producer.flush()
    except KeyboardInterrupt:
        producer.flush()
        _say(args, sent)
        raise
    _say(args, sent)


def _say(args: argparse.Namespace, sent: int) -> None:
    print(f"produced {counted(sent, 'record')} to {args.topic}", file=sys.stderr)


def _source(args: argparse.Namespace, stack: ExitStack) -> IO[bytes]:
    if args.file is None:
        return sys.stdin.buffer
    try:
        source: IO[bytes] = args.file.open("rb")
    except OSError as error:
        raise ConfigError(f"--file {args.file} cannot be read: {error.strerror}") from None
    return stack.enter_context(source)


def _schema(given: str) -> dict[str, Any]:
    """What tells a serialiser which schema is meant."""
    if given == "latest":
        return {"version": "latest"}
    if given.isdecimal():
        return {"id": int(given)}
    return {"schema": text_of(Path(given))}


def _check_partition(args: argparse.Namespace, producer: "Producer") -> None:
    """The topic exists, and the partition. Raises UnknownTopicOrPartition."""
    known = len(producer.partitions_of(args.topic))
    if args.partition is not None and not 0 <= args.partition < known:
        raise UnknownTopicOrPartition(
            f"partition {args.partition} does not exist: "
            f"topic {args.topic} has {known}, numbered from 0"
        )


def _reader(
    args: argparse.Namespace, encoders: dict[str, _Encode], stack: ExitStack
) -> Callable[[bytes], Draft]:
    """From a line to what is to be sent."""
    encode, encode_key = encoders.get("value"), encoders.get("key")
    if args.input == "json":
        decode = stack.enter_context(Decoder.of(args))
        return lambda line: draft_of(line, decode, encode, encode_key)
    separator = b"" if args.key_separator is None else os.fsencode(args.key_separator)

    def read(line: bytes) -> Draft:
        value, key = line.removesuffix(b"\n").removesuffix(b"\r"), None
        if separator:
            key, found, value = value.partition(separator)
            if not found:
                raise SerializationError(f"there is no {args.key_separator!r} after a key")
            key = key if encode_key is None else encode_key(json_of(key))
        return Draft(value if encode is None else encode(json_of(value)), key)

    return read


def _header(given: str) -> tuple[str, bytes]:
    name, found, value = given.partition("=")
    if not found or not name:
        raise ConfigError(f"--header {given!r} is not NAME=VALUE")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--header {given!r}: its name is not UTF-8") from None
    return name, os.fsencode(value)  # the very bytes that were given, text or not


def _encoders(
    args: argparse.Namespace, schemas: dict[str, dict[str, Any]], stack: ExitStack
) -> dict[str, _Encode]:
    """From what JSON says to a record's key or value, by schemas that are registered here."""
    if not schemas:
        return {}
    from folkmoot.console.formats.typed_json import TypedJson
    from folkmoot.schemas.registry.schema_registry import SchemaRegistry
    from folkmoot.schemas.values.serializer import AvroSerializer

    registry = stack.enter_context(SchemaRegistry(args.zookeeper, timeout=args.timeout))
    found: dict[str, _Encode] = {}
    for field, arguments in schemas.items():
        subject = f"{args.schema_context}{args.topic}-{field}"
        serializer = AvroSerializer(registry, subject=subject, **arguments)
        number = serializer.prepare(args.topic)  # registers it, or says what is wrong with it
        typed = TypedJson(registry.resolved(number, subject=subject))
        found[field] = partial(_encoded, typed, partial(serializer.serialize, args.topic))
    return found


def _encoded(typed: _Typed, serialize: _Encode, told: Any) -> bytes:
    return serialize(typed(told))
