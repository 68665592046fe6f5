"""`folkmoot log`: look into the files of a broker, running or not, without changing them."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from folkmoot.console.cluster.restore import inventory
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import TOPIC
from folkmoot.console.options.values import FILE, output_option
from folkmoot.console.tables import show, stream
from folkmoot.protocol.errors import ConfigError

if TYPE_CHECKING:
    from folkmoot.brokers.storage.segment import Damage, SegmentReader
    from folkmoot.protocol.batch_header import BatchHeader

DAMAGED = 1
_DAMAGE = "DAMAGED"
MAX_WIDTH = 60

_path_argument = click.argument("path", type=FILE)


@click.group()
def command() -> None:
    """Inspect a broker's files, whether it runs or not, without changing them.

    PATH is a data directory, that of `folkmoot dev`, a partition's, or a .log file.
    """


command.add_command(inventory)


@command.command("sizes")
@click.argument("topics", metavar="[TOPIC]...", type=TOPIC, nargs=-1)
@click.option(
    "--by",
    type=click.Choice(("broker", "topic", "partition")),
    default="partition",
    help="One line for each.",
)
@output_option
@with_zookeeper()
def _sizes(cluster: Cluster, topics: tuple[str, ...], by: str, output: str) -> int:
    """Show how much of each topic is on each broker; one that does not answer is missing."""
    with cluster.admin() as admin:
        sizes = admin.log_sizes(topics or None)
    if by == "partition":
        rows = [(each.broker, *each.partition, each.bytes, each.log_end) for each in sizes]
        show(("broker", "topic", "partition", "bytes", "log end"), rows, output)
        return 0
    totals: dict[tuple[object, ...], int] = {}
    for each in sizes:
        key = (each.broker,) if by == "broker" else (each.broker, each.partition.topic)
        totals[key] = totals.get(key, 0) + each.bytes
    columns = ("broker",) if by == "broker" else ("broker", "topic")
    show((*columns, "bytes"), [(*key, size) for key, size in sorted(totals.items())], output)
    return 0


@command.command("verify")
@_path_argument
@output_option
def _verify(path: Path, output: str) -> int:
    """Compare every batch with its checksums.

    One line for each segment, and one for each damaged range. The exit code is 1 if there is damage.
    """
    damaged: list[Path] = []
    columns = ("partition", "file", "state", "offset", "next", "position", "records", "batches")
    segments = _segments(path)
    stream((*columns, "end"), _verdicts(segments, damaged), output)
    return DAMAGED if damaged else 0


def _verdicts(
    segments: "Iterator[tuple[str, SegmentReader]]", damaged: list[Path]
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `log verify`; append files with damage to `damaged`."""
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
            columns = (reader.base_offset, last, 0)
            yield (*name, "ok", *columns, records, batches, reader.size)
        yield from bad
        damaged += [reader.path] * bool(bad)


@command.command("dump")
@_path_argument
@click.option("--records", is_flag=True, help="The records in the batches, too.")
@output_option
def _dump(path: Path, records: bool, output: str) -> int:
    """List every batch, or every record, with damaged ranges in their places."""
    damaged: list[Path] = []
    batch_columns = ("position", "first", "last", "records", "bytes", "codec", "from", "to")
    record_columns = ("position", "first", "last", "timestamp", "bytes", "key", "value", "headers")
    columns = ("partition", "file", *(record_columns if records else batch_columns))
    max_width = None if output == "json" else MAX_WIDTH
    make_rows = partial(_records, max_width=max_width) if records else _batch
    stream(columns, _contents(path, make_rows, damaged), output)
    return DAMAGED if damaged else 0


def _contents(
    path: Path,
    make_rows: "Callable[[SegmentReader, BatchHeader, int], Iterator[tuple[object, ...]]]",
    damaged: list[Path],
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `log dump` that `make_rows` makes; append files with damage to `damaged`."""
    from folkmoot.brokers.storage.segment import Damage

    for partition, reader in _segments(path):
        file = reader.path.name if path.is_file() else reader.path.relative_to(path)
        name = partition, str(file)
        for found in _batches(reader):
            if isinstance(found, Damage):
                damaged.append(reader.path)
                columns = (found.position, found.offset, found.next_offset - 1, None)
                yield (*name, *columns, found.end - found.position, _DAMAGE, None, None)
            else:
                yield from ((*name, *row) for row in make_rows(reader, *found))


def _batches(
    reader: "SegmentReader", position: int = 0, offset: int | None = None
) -> "Iterator[tuple[BatchHeader, int] | Damage]":
    """Yield what is in a segment. Damage at an end that has grown since is a batch in writing."""
    from folkmoot.brokers.storage.segment import Damage, SegmentReader

    start = () if offset is None else (position, offset)
    for found in reader.batches(*start):
        if isinstance(found, Damage) and found.end == reader.size:
            with suppress(FileNotFoundError):
                size = reader.path.stat().st_size
                if size > reader.size:
                    later = SegmentReader(reader.directory, reader.name, size, reader.end_offset)
                    with closing(later):
                        yield from _batches(later, found.position, found.offset)
                    return
        yield found


def _batch(
    _: "SegmentReader", header: "BatchHeader", position: int
) -> Iterator[tuple[object, ...]]:
    from folkmoot.protocol.compression import Codec

    yield (
        *(position, header.base_offset, header.last_offset, header.record_count, header.length),
        *(Codec(header.codec).name.lower(), header.base_timestamp, header.max_timestamp),
    )


def _records(
    reader: "SegmentReader", header: "BatchHeader", position: int, *, max_width: int | None
) -> Iterator[tuple[object, ...]]:
    from folkmoot.protocol import record_batch

    data = reader.read(position, header.length)
    for record in record_batch.records_of("", 0, header, data):
        yield (
            *(position, record.offset, record.offset, record.timestamp, len(record.value or b"")),
            *(
                None if data is None else _truncate(data, max_width)
                for data in (record.key, record.value)
            ),
            len(record.headers),
        )


def _truncate(data: bytes, max_width: int | None) -> str:
    """Return at most `max_width` letters: one long value would widen the table for all."""
    text = repr(data)[2:-1]
    return text if max_width is None or len(text) <= max_width else f"{text[: max_width - 1]}…"


@command.command("orphans")
@click.argument("path", type=FILE)
@output_option
@with_zookeeper()
def _orphans(cluster: Cluster, path: Path, output: str) -> int:
    """List the partitions in a data directory whose topics do not exist."""
    from folkmoot.brokers.storage.log_manager import IDENTITY_FILE, partition_directories
    from folkmoot.coordination import topics
    from folkmoot.coordination.zookeeper.execute import execute, execute_all

    if not (path / IDENTITY_FILE).is_file():
        raise ConfigError(f"{path} is no data directory: it has no {IDENTITY_FILE}")
    # The directories first: a topic that is created meanwhile is then known.
    found = sorted(partition_directories(path))
    with cluster.session() as session:
        names = execute(session, topics.names(), cluster.timeout)
        existing_topics = execute_all(session, map(topics.read, names), timeout=cluster.timeout)
    existing = {topic.topic_id for topic in existing_topics if topic is not None}
    rows: list[tuple[object, ...]] = []
    for each in found:
        if each.topic_id not in existing:
            with suppress(FileNotFoundError):  # its broker runs, and has deleted it since
                identity = (str(each.path), each.topic or None, each.partition, each.topic_id)
                rows.append((*identity, _size(each.path)))
    show(("directory", "topic", "partition", "topic id", "bytes"), rows, output)
    return 0


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _segments(path: Path) -> Iterator[tuple[str, "SegmentReader"]]:
    """Yield partition and file of the segments below a path, in order. Raises ConfigError."""
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
