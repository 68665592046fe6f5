"""`folkmoot produce`: lines of standard input, or of a file, as records."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from folkmoot.console.options import add_zookeeper
from folkmoot.protocol.errors import ConfigError, SerializationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_zookeeper(parser)
    parser.add_argument("--file", type=Path, metavar="FILE", help="read this, not standard input")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="what stands before it in a line is the key"
    )
    parser.add_argument("--partition", type=int, metavar="P", help="for all records, not by key")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="on every record"
    )
    parser.add_argument(
        "--schema",
        type=Path,
        metavar="FILE.avsc",
        help="lines are JSON objects, sent as Avro; registered under TOPIC-value",
    )
    parser.add_argument("--acks", choices=("0", "1", "all"), default="1", help="default: 1")
    parser.add_argument("--compression", default="zstd", help="zstd (default) or none")


def run(args: argparse.Namespace) -> int:
    from folkmoot.producers.producer import Producer

    headers = [_header(each) for each in args.header]
    acks = args.acks if args.acks == "all" else int(args.acks)
    options = {"acks": acks, "compression": args.compression, "client_id": "folkmoot-produce"}
    sent = 0
    with Producer(zookeeper=args.zookeeper, **options) as producer, _encoder(args) as encode:
        for key, line in _lines(args):
            value = encode(line)
            producer.send(args.topic, value, key, partition=args.partition, headers=headers)
            sent += 1
    print(f"produced {sent} records to {args.topic}", file=sys.stderr)
    return 0


def _lines(args: argparse.Namespace) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of every line."""
    separator = args.key_separator.encode() if args.key_separator else None
    try:
        source = args.file.open("rb") if args.file else sys.stdin.buffer
    except OSError as error:
        raise ConfigError(f"--file {args.file} cannot be read: {error.strerror}") from None
    with source:
        for number, line in enumerate(source, 1):
            text = line.rstrip(b"\r\n")
            if separator is None:
                yield None, text
                continue
            key, found, value = text.partition(separator)
            if not found:
                raise SerializationError(
                    f"line {number} has no key: {args.key_separator!r} does not stand in it"
                )
            yield key, value


def _header(given: str) -> tuple[str, bytes]:
    name, found, value = given.partition("=")
    if not found or not name:
        raise ConfigError(f"--header {given!r} is not NAME=VALUE")
    return name, value.encode()


@contextmanager
def _encoder(args: argparse.Namespace) -> Iterator[Callable[[bytes], bytes]]:
    """From a line to a record's value: as it is, or by the schema."""
    if args.schema is None:
        yield lambda line: line
        return
    from folkmoot.schemas.avro import AvroSerializer
    from folkmoot.schemas.registry import SchemaRegistry

    try:
        schema = args.schema.read_text()
    except OSError as error:
        raise ConfigError(f"--schema {args.schema} cannot be read: {error.strerror}") from None
    with SchemaRegistry(args.zookeeper) as registry:
        serialize = AvroSerializer(registry, f"{args.topic}-value", schema)
        yield lambda line: serialize(_json(line))


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise SerializationError(f"not JSON: {line[:80]!r}: {error}") from None
