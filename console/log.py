"""`folkmoot log`: look into the files of a broker, running or not, without changing them."""

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from folkmoot.console.options import add_output
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError

if TYPE_CHECKING:
    from folkmoot.brokers.storage.damage import Damage
    from folkmoot.brokers.storage.logfile import LogFile
    from folkmoot.protocol.batch_header import BatchHeader

DAMAGED = 1


class Part(NamedTuple):
    """A segment to look into: its file, its first offset, and its end if the next one says so."""

    log: "LogFile"
    base_offset: int
    end_offset: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    verify = actions.add_parser("verify", help="compare every batch with its checksums")
    verify.set_defaults(act=_verify)

    dump = actions.add_parser("dump", help="list every batch, or every record")
    dump.add_argument("--records", action="store_true", help="the records in the batches too")
    dump.set_defaults(act=_dump)

    for action in (verify, dump):
        action.add_argument(
            "path",
            type=Path,
            metavar="PATH",
            help="a data directory, a partition's, or a .log file",
        )
        add_output(action)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _verify(args: argparse.Namespace) -> int:
    """One line for each segment, and one for each range that is damaged."""
    from folkmoot.brokers.storage.damage import Damage

    rows: list[tuple[object, ...]] = []
    code = 0
    for part in _parts(args.path):
        batches = records = 0
        worst: list[tuple[object, ...]] = []
        last = part.base_offset
        for found in _pieces(part):
            if isinstance(found, Damage):
                last = found.next_offset
                worst.append((str(part.log.path), "DAMAGED", *_range(found), None, found.end))
            else:
                batches += 1
                records += found[0].record_count
                last = found[0].next_offset
        size = part.log.size
        if batches or not worst:
            place = (part.base_offset, last, 0)
            rows.append((str(part.log.path), "ok", *place, records, batches, size))
        rows += [(path, what, *rest[:3], None, None, rest[4]) for path, what, *rest in worst]
        code = DAMAGED if worst else code
    columns = ("file", "state", "offset", "next", "position", "records", "batches", "end")
    show(columns, rows, args.output)
    return code


def _range(damage: "Damage") -> tuple[int, int, int]:
    return damage.offset, damage.next_offset, damage.position


def _dump(args: argparse.Namespace) -> int:
    """One line for each batch; damaged ranges stand where they are."""
    from folkmoot.brokers.storage.damage import Damage

    rows: list[tuple[object, ...]] = []
    code = 0
    for part in _parts(args.path):
        for found in _pieces(part):
            if isinstance(found, Damage):
                code = DAMAGED
                length = found.end - found.position
                row = (found.position, found.offset, found.next_offset - 1, None, length)
                rows.append((part.log.path.name, *row, "DAMAGED", None, None))
            elif args.records:
                rows += _records(part, *found)
            else:
                rows.append(_batch(part, *found))
    batches = ("file", "position", "first", "last", "records", "bytes", "codec", "from", "to")
    records = ("file", "position", "first", "last", "timestamp", "bytes", "key", "value", "headers")
    show(records if args.records else batches, rows, args.output)
    return code


def _batch(part: Part, header: "BatchHeader", position: int) -> tuple[object, ...]:
    from folkmoot.protocol.compression import Codec

    return (
        *(part.log.path.name, position, header.base_offset, header.last_offset),
        *(header.record_count, header.length, Codec(header.codec).name.lower()),
        *(header.base_timestamp, header.max_timestamp),
    )


def _records(part: Part, header: "BatchHeader", position: int) -> Iterator[tuple[object, ...]]:
    from folkmoot.protocol import record_batch

    data = part.log.read(header.length, position)
    for record in record_batch.records_of("", 0, header, data):
        yield (
            *(part.log.path.name, position, record.offset, record.offset, record.timestamp),
            len(record.value or b""),
            *(None if text is None else repr(text)[2:-1] for text in (record.key, record.value)),
            len(record.headers),
        )


def _pieces(part: Part) -> Iterator["tuple[BatchHeader, int] | Damage"]:
    """All batches and all damage of a segment, in order."""
    from folkmoot.brokers.storage.damage import examine

    try:
        yield from examine(part.log, 0, part.base_offset, part.end_offset)
    finally:
        part.log.release()


def _parts(path: Path) -> Iterator[Part]:
    """The segments below a path, partition by partition, in order. Raises ConfigError."""
    from folkmoot.brokers.storage import directories
    from folkmoot.brokers.storage.compaction import compacted
    from folkmoot.brokers.storage.logfile import LogFile

    if path.is_file():
        files = [path]
    else:
        files = sorted(path.glob("[0-9]*.log")) or sorted(path.glob("*/[0-9]*.log"))
    if not files:
        raise ConfigError(
            f"{path} has no segments: give a data directory, a partition's, or a .log"
        )
    for file, following in pairwise([*files, None]):
        assert file is not None
        if file.suffix != directories.LOG_SUFFIX:
            raise ConfigError(f"{file} is no segment: give a {directories.LOG_SUFFIX} file")
        if not file.stem.isdigit():
            raise ConfigError(f"{file} is no segment: its name is not an offset")
        same = following is not None and following.parent == file.parent
        end = int(following.stem) if same and following is not None else None
        log = LogFile(file, file.stat().st_size, read_only=True)
        topic_id = directories.topic_id_in(file.parent)
        log.sparse = int(file.stem) < compacted.load(file.parent, topic_id).sparse_before
        yield Part(log, int(file.stem), end)
