"""`folkmoot log`: look into the files of a broker, running or not, without changing them."""

import argparse
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from folkmoot.console import restore
from folkmoot.console.options import add_output, add_zookeeper, admin_of, session_of
from folkmoot.console.tables import show, stream
from folkmoot.protocol.errors import ConfigError

if TYPE_CHECKING:
    from folkmoot.brokers.storage.segment import Damage, SegmentReader
    from folkmoot.protocol.batch_header import BatchHeader

DAMAGED = 1
_DAMAGE = "DAMAGED"
MOST_SHOWN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    verify = actions.add_parser("verify", help="compare every batch with its checksums")
    verify.set_defaults(act=_verify)

    dump = actions.add_parser("dump", help="list every batch, or every record")
    dump.add_argument("--records", action="store_true", help="the records in the batches too")
    dump.set_defaults(act=_dump)

    orphans = actions.add_parser("orphans", help="list partitions of topics that do not exist")
    orphans.set_defaults(act=_orphans)
    add_zookeeper(orphans)

    restore.add_inventory(actions)

    sizes = actions.add_parser("sizes", help="how much of each topic lies on each broker")
    sizes.add_argument("topic", metavar="TOPIC", nargs="*", help="default: all")
    sizes.add_argument(
        "--by",
        choices=("broker", "topic", "partition"),
        default="partition",
        help="one line for each (default: partition)",
    )
    sizes.set_defaults(act=_sizes)
    add_zookeeper(sizes)
    add_output(sizes)

    parts = "a data directory, that of `folkmoot dev`, a partition's, or a .log file"
    for action, path in ((verify, parts), (dump, parts), (orphans, "a data directory")):
        action.add_argument("path", type=Path, metavar="PATH", help=path)
        add_output(action)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _sizes(args: argparse.Namespace) -> int:
    """What the running brokers say; one that does not answer is missing."""
    with admin_of(args) as found:
        sizes = found.log_sizes(args.topic or None)
    if args.by == "partition":
        rows = [(each.broker, *each.partition, each.bytes, each.log_end) for each in sizes]
        show(("broker", "topic", "partition", "bytes", "log end"), rows, args.output)
        return 0
    totals: dict[tuple[object, ...], int] = {}
    for each in sizes:
        key = (each.broker,) if args.by == "broker" else (each.broker, each.partition.topic)
        totals[key] = totals.get(key, 0) + each.bytes
    columns = ("broker",) if args.by == "broker" else ("broker", "topic")
    show((*columns, "bytes"), [(*key, size) for key, size in sorted(totals.items())], args.output)
    return 0


def _verify(args: argparse.Namespace) -> int:
    """One line for each segment, and one for each range that is damaged."""
    damaged: list[Path] = []
    columns = ("partition", "file", "state", "offset", "next", "position", "records", "batches")
    segments = _segments(args.path)
    stream((*columns, "end"), _verdicts(segments, damaged), args.output)
    return DAMAGED if damaged else 0


def _verdicts(
    segments: "Iterator[tuple[str, SegmentReader]]", damaged: list[Path]
) -> Iterator[tuple[object, ...]]:
    """The rows of `log verify`; files with damage are appended to `damaged`."""
    from folkmoot.brokers.storage.segment import Damage

    for partition, reader in segments:
        batches = records = 0
        bad: list[tuple[object, ...]] = []
        last = reader.base_offset
        name = partition, str(reader.path)
        for found in _batches(reader):
            if isinstance(found, Damage):
                last = found.next_offset
                bad.append(
                    (*name, _DAMAGE, found.offset, last, found.position, None, None, found.end)
                )
            else:
                batches += 1
                records += found[0].record_count
                last = found[0].next_offset
        if batches or not bad:
            place = (reader.base_offset, last, 0)
            yield (*name, "ok", *place, records, batches, reader.size)
        yield from bad
        damaged += [reader.path] * bool(bad)


def _dump(args: argparse.Namespace) -> int:
    """One line for each batch; damaged ranges stand where they are."""
    damaged: list[Path] = []
    batches = ("position", "first", "last", "records", "bytes", "codec", "from", "to")
    records = ("position", "first", "last", "timestamp", "bytes", "key", "value", "headers")
    columns = ("partition", "file", *(records if args.records else batches))
    stream(columns, _contents(args, damaged), args.output)
    return DAMAGED if damaged else 0


def _contents(args: argparse.Namespace, damaged: list[Path]) -> Iterator[tuple[object, ...]]:
    """The rows of `log dump`; files with damage are appended to `damaged`."""
    from folkmoot.brokers.storage.segment import Damage

    for partition, reader in _segments(args.path):
        file = reader.path.name if args.path.is_file() else reader.path.relative_to(args.path)
        name = partition, str(file)
        for found in _batches(reader):
            if isinstance(found, Damage):
                damaged.append(reader.path)
                place = (found.position, found.offset, found.next_offset - 1, None)
                yield (*name, *place, found.end - found.position, _DAMAGE, None, None)
            elif args.records:
                most = None if args.output == "json" else MOST_SHOWN
                yield from ((*name, *record) for record in _records(reader, *found, most))
            else:
                yield (*name, *_batch(*found))


def _batches(
    reader: "SegmentReader", position: int = 0, offset: int | None = None
) -> "Iterator[tuple[BatchHeader, int] | Damage]":
    """What is in a segment; where it ends within a batch and has grown since, its broker was writing that."""
    from folkmoot.brokers.storage.segment import Damage, SegmentReader

    place = () if offset is None else (position, offset)
    for found in reader.batches(*place):
        if isinstance(found, Damage) and found.end == reader.size:
            with suppress(FileNotFoundError):
                size = reader.path.stat().st_size
                if size > reader.size:
                    later = SegmentReader(reader.directory, reader.name, size, reader.end_offset)
                    with closing(later):
                        yield from _batches(later, found.position, found.offset)
                    return
        yield found


def _batch(header: "BatchHeader", position: int) -> tuple[object, ...]:
    from folkmoot.protocol.compression import Codec

    return (
        *(position, header.base_offset, header.last_offset, header.record_count, header.length),
        *(Codec(header.codec).name.lower(), header.base_timestamp, header.max_timestamp),
    )


def _records(
    reader: "SegmentReader", header: "BatchHeader", position: int, most: int | None
) -> Iterator[tuple[object, ...]]:
    from folkmoot.protocol import record_batch

    data = reader.read(position, header.length)
    for record in record_batch.records_of("", 0, header, data):
        yield (
            *(position, record.offset, record.offset, record.timestamp, len(record.value or b"")),
            *(None if data is None else _shown(data, most) for data in (record.key, record.value)),
            len(record.headers),
        )


def _shown(data: bytes, most: int | None) -> str:
    """At most so many letters: one long value would widen the table for all."""
    text = repr(data)[2:-1]
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _orphans(args: argparse.Namespace) -> int:
    """One line for each partition whose topic's id no topic of the cluster has."""
    from folkmoot.brokers.storage.log_manager import IDENTITY_FILE, partition_directories
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute, execute_all

    if not (args.path / IDENTITY_FILE).is_file():
        raise ConfigError(f"{args.path} is no data directory: it has no {IDENTITY_FILE}")
    # The directories first: a topic that is created meanwhile is then known.
    found = sorted(partition_directories(args.path))
    with session_of(args) as store:
        names = execute(store, topics.names(), args.timeout)
        known = execute_all(store, map(topics.read, names), timeout=args.timeout)
    existing = {topic.topic_id for topic in known if topic is not None}
    rows: list[tuple[object, ...]] = []
    for each in found:
        if each.topic_id not in existing:
            with suppress(FileNotFoundError):  # its broker runs, and has deleted it since
                named = (str(each.path), each.topic or None, each.partition, each.topic_id)
                rows.append((*named, _size(each.path)))
    show(("directory", "topic", "partition", "topic id", "bytes"), rows, args.output)
    return 0


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _segments(path: Path) -> Iterator[tuple[str, "SegmentReader"]]:
    """Partition and file of the segments below a path, in order. Raises ConfigError."""
    from folkmoot.brokers.storage.files.cluster_facts import topic_in
    from folkmoot.brokers.storage.segment import LOG_SUFFIX, SegmentName, SegmentReader

    pattern = f"[0-9]*{LOG_SUFFIX}"
    files = (
        [path]
        if path.is_file()
        else sorted(path.glob(pattern))
        or sorted(path.glob(f"*/{pattern}"))
        or sorted(path.glob(f"broker-*/*/{pattern}"))  # as `folkmoot dev` has them
    )
    if not files:
        raise ConfigError(
            f"{path} has no segments: give a data directory, a partition's, or a .log"
        )
    for file, following in pairwise([*files, None]):
        assert file is not None
        name = SegmentName.parse(file.name)
        if name is None:
            raise ConfigError(f"{file} is no segment: give a {LOG_SUFFIX} file")
        end = name.end
        if not end and following is not None and following.parent == file.parent:
            end = int(following.name[:20])
        topic_id, _, partition = file.absolute().parent.name.rpartition("-")
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            continue  # its broker runs, and has deleted or compacted it since
        reader = SegmentReader(file.parent, name, size, end)
        try:
            yield f"{topic_in(file.parent) or topic_id}-{partition}", reader
        finally:
            reader.close()
