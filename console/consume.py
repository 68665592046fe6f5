"""`folkmoot consume`: a topic's records, once through or as they come, decoded by their schema."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from folkmoot.console.options import add_zookeeper
from folkmoot.protocol.errors import ConfigError, MissingExtra, SchemaNotFound, SerializationError
from folkmoot.protocol.names import check_name

if TYPE_CHECKING:
    from folkmoot.consumers.consumer import Consumer
    from folkmoot.protocol.records import Record

_Decode = Callable[[bytes], tuple[Any, int | None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_zookeeper(parser)
    parser.add_argument("--group", metavar="NAME", help="read as a member, and commit")
    parser.add_argument(
        "--from",
        dest="start",
        default="beginning",
        metavar="WHERE",
        help="beginning (default), end, or an offset; in a group only where nothing is committed",
    )
    parser.add_argument("--partition", type=int, action="append", metavar="P", help="only this one")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as records come")
    parser.add_argument("-n", "--max-records", type=int, metavar="N", help="stop after N records")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "raw"), default="text", help="default: text"
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.consumers.consumer import Consumer

    check_name("topic", args.topic)
    start = _start(args)
    reset = "latest" if start == "end" else "earliest"
    topics = [args.topic] if args.group else []
    options = {"group": args.group, "topics": topics, "auto_offset_reset": reset}
    write = {"text": _text, "json": _json, "raw": _raw}[args.output]
    left = args.max_records
    with (
        Consumer(zookeeper=args.zookeeper, client_id="folkmoot-consume", **options) as consumer,
        _Decoder(args.zookeeper) as decode,
    ):
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        if not args.group:
            known = consumer.partitions_of(args.topic)
            consumer.assign([(args.topic, p) for p in args.partition] if args.partition else known)
            if isinstance(start, int):
                for partition in consumer.assignment():
                    consumer.seek(partition, start)
        for record in _records(consumer, args.follow):
            write(record, decode)
            if left is not None and (left := left - 1) <= 0:
                break
    return 0


def _start(args: argparse.Namespace) -> int | str:
    if args.start in ("beginning", "end"):
        return str(args.start)
    if args.group and (args.partition or args.start.isdecimal()):
        raise ConfigError("a member reads where its group is: use --from OFFSET without --group")
    if not args.start.isdecimal():
        raise ConfigError(f"--from {args.start!r} is neither beginning, end nor an offset")
    return int(args.start)


def _records(consumer: "Consumer", follow: bool) -> Iterator["Record"]:
    """All records, until the ends of all partitions are reached unless they are to be followed."""
    while True:
        records = consumer.poll(0.5)
        yield from records
        sys.stdout.flush()
        if not records and not follow and _at_end(consumer):
            return


def _at_end(consumer: "Consumer") -> bool:
    partitions = consumer.assignment()
    return bool(partitions) and all(
        (position := consumer.position(each)) is not None
        and (end := consumer.end_offset(each)) is not None
        and position >= end
        for each in partitions
    )


class _Decoder:
    """Values by the schema whose id they carry; without one, or without Avro here, as they are."""

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._registry: Any = None
        self._deserialize: Any = None

    def __enter__(self) -> _Decode:
        from folkmoot.schemas.registry import SchemaRegistry

        self._registry = SchemaRegistry(self._zookeeper)
        return self._decode

    def __exit__(self, *_: object) -> None:
        self._registry.close()

    def _decode(self, value: bytes) -> tuple[Any, int | None]:
        """The value for a person to read, and its schema's id if it has one."""
        if value[:1] == b"\0" and len(value) > 4:
            try:
                from folkmoot.schemas.avro import AvroDeserializer, schema_id

                if self._deserialize is None:
                    self._deserialize = AvroDeserializer(self._registry)
                return self._deserialize(value), schema_id(value)
            except (MissingExtra, SchemaNotFound, SerializationError):
                pass  # then it is no such value, or cannot be read here: shown as bytes
        return _readable(value), None


def _readable(data: bytes | None) -> str | None:
    """Text where it is UTF-8, else hexadecimal after 0x."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _text(record: "Record", decode: _Decode) -> None:
    value, _ = (None, None) if record.value is None else decode(record.value)
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    key = "" if record.key is None else f"{_readable(record.key)}: "
    print(f"{record.partition}@{record.offset} {key}{shown}")


def _json(record: "Record", decode: _Decode) -> None:
    value, schema = (None, None) if record.value is None else decode(record.value)
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(),
        "key": _readable(record.key),
        "value": value,
        "headers": [[name, _readable(data)] for name, data in record.headers],
        "schema_id": schema,
    }
    print(json.dumps(fields, default=str))


def _raw(record: "Record", decode: _Decode) -> None:
    sys.stdout.buffer.write((record.value or b"") + b"\n")
