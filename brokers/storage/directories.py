"""Names of the partitions' directories, and how they come and go.

```
<data>/<topic>-<partition>/topic-id                 served
                           start-offset             the first offset not given up, if any was
                           <20 digits>.log …        segments (see Segment)
                           <20 digits>.snapshot     producers, as of that offset (see ProducerMemory)
                           compacted                how far it was compacted (see Compacted)
                           <20 digits>.cleaned/ …   compaction under way (see swap.py)
                         <20 digits>.log.deleted …  given up: removed at start, if not before
<data>/<topic>-<partition>.<topic id>.creating/     not finished: removed at start
<data>/<topic>-<partition>.<topic id>.deleted/      given up: removed at start, if not before
```

A directory appears under its own name by a rename, with its topic id inside, and disappears by one,
so none is ever half there. Names of served directories end in a digit and the others do not, so no
topic's name can pass for one of them. The two changing names leave out the end of very long topics.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from folkmoot.brokers.storage.atomic_file import (
    flush_file,
    read_checked,
    sync_directory,
    write_checked,
)
from folkmoot.brokers.storage.damage import DAMAGE_SUFFIX
from folkmoot.protocol.batch_header import MAX_OFFSET
from folkmoot.protocol.errors import InvalidRequest
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

TOPIC_ID_FILE: Final = "topic-id"
START_FILE: Final = "start-offset"
LOG_SUFFIX: Final = ".log"
SNAPSHOT_SUFFIX: Final = ".snapshot"
_CREATING = ".creating"
_DELETED = ".deleted"
_MAX_FILE_NAME = 255
_MAX_PARTITION = 99_999
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SERVED = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,4})")
_INTERRUPTED = re.compile(r"[0-9]{20}(\.cleaned|-[0-9]{20}\.swap)")
_SEGMENT_FILE = re.compile(
    r"(?P<base>[0-9]{20})(?P<kind>"
    + "|".join(map(re.escape, (LOG_SUFFIX, DAMAGE_SUFFIX, SNAPSHOT_SUFFIX)))
    + ")"
)


def check_partition(topic: str, topic_id: str, partition: int) -> TopicPartition:
    """Refuse what cannot be a directory's name. Raises InvalidName, InvalidRequest."""
    check_name("topic", topic)
    if not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidRequest(f"topic id {topic_id!r} of {topic} is not allowed")
    if not 0 <= partition <= _MAX_PARTITION:
        raise InvalidRequest(f"partition {partition} of {topic} is outside 0 … {_MAX_PARTITION}")
    return TopicPartition(topic, partition)


def create(data: Path, name: TopicPartition, topic_id: str) -> Path:
    """The directory of a new partition, on disk when this returns. Raises OSError."""
    outcome = create_all(data, {name: topic_id})[name]
    if outcome is not None:
        raise outcome
    return data / str(name)


def create_all(
    data: Path, wanted: Mapping[TopicPartition, str]
) -> dict[TopicPartition, OSError | None]:
    """The directories of new partitions, with their topics' ids: on disk when this returns, or why not.

    What is in a directory is on disk before it gets its own name, so that a power cut leaves it whole
    or not at all; all names are put on disk by one flush.
    """
    outcomes: dict[TopicPartition, OSError | None] = {}
    asides = {name: _aside(data, name, topic_id, _CREATING) for name, topic_id in wanted.items()}
    steps: tuple[Callable[[TopicPartition], None], ...] = (
        lambda name: _fill(asides[name], wanted[name]),
        lambda name: flush_file(asides[name] / TOPIC_ID_FILE),
        lambda name: sync_directory(asides[name]),
        lambda name: _move_in(asides[name], data / str(name), wanted[name]),
    )
    for step in steps:
        for name in wanted:
            if outcomes.get(name) is None:
                outcomes[name] = _failure(step, name)
    failure = _failure(sync_directory, data)
    return {name: outcome or failure for name, outcome in outcomes.items()}


_T = TypeVar("_T")


def _failure(step: Callable[[_T], None], what: _T) -> OSError | None:
    try:
        step(what)
    except OSError as error:
        return error
    return None


def _fill(new: Path, topic_id: str) -> None:
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    (new / TOPIC_ID_FILE).write_bytes(f"{topic_id}\n".encode())


def _move_in(new: Path, directory: Path, topic_id: str) -> None:
    try:
        new.rename(directory)
    except OSError:
        # Of an earlier try, which had a name but could not flush it.
        if topic_id_in(directory) != topic_id:
            raise
        shutil.rmtree(new)


class Files(NamedTuple):
    """What lies in a partition's directory."""

    segments: list[tuple[int, int]]
    """Base offset and size of each, in order."""
    damaged: set[int]
    """Base offsets of those with damage noted."""
    doomed: list[Path]
    """What `put_aside` left."""
    others: set[str]
    """Names of all else that is no index."""
    snapshots: list[int]
    """The offsets of the snapshots of producers, in order."""


def partition_files(directory: Path) -> Files:
    """List a partition's directory. Raises OSError."""
    segments, damaged, doomed, others = [], set(), [], set()
    snapshots: list[int] = []
    with os.scandir(directory) as files:
        for file in files:
            match = _SEGMENT_FILE.fullmatch(file.name)
            if match is None or int(match["base"]) > MAX_OFFSET:
                if file.name.endswith(_DELETED):
                    doomed.append(Path(file.path))
                elif not file.name[:1].isdigit() or is_interrupted(file.name):
                    others.add(file.name)
            elif match["kind"] == DAMAGE_SUFFIX:
                damaged.add(int(match["base"]))
            elif match["kind"] == SNAPSHOT_SUFFIX:
                snapshots.append(int(match["base"]))
            else:
                segments.append((int(match["base"]), file.stat().st_size))
    return Files(sorted(segments), damaged, doomed, others, sorted(snapshots))


def is_interrupted(name: str) -> bool:
    """Whether something so named in a partition's directory is a compaction that was interrupted."""
    return _INTERRUPTED.fullmatch(name) is not None


def load_start(directory: Path, topic_id: str) -> int:
    """The offset before which all records of a partition were given up. Raises OSError."""
    noted = (read_checked(directory / START_FILE) or b"").split()
    return int(noted[1]) if len(noted) == 2 and noted[0] == topic_id.encode() else 0


def save_start(directory: Path, topic_id: str, offset: int) -> None:
    """Note it; on disk when this returns. Raises OSError.

    A topic may be deleted, and created again under its name, while this is about to be written: the
    new one has nothing to do with it.
    """
    write_checked(directory / START_FILE, b"%s %d" % (topic_id.encode(), offset))


def put_away(data: Path, name: TopicPartition, topic_id: str) -> Path:
    """Take a partition's directory out of use; → where it is now, to be removed. Raises OSError."""
    doomed = _aside(data, name, topic_id, _DELETED)
    if doomed.exists():
        shutil.rmtree(doomed)
    (data / str(name)).rename(doomed)
    sync_directory(data)
    return doomed


def put_aside(paths: Sequence[Path]) -> list[Path]:
    """Take files out of use, in order; → what they are called now, to be removed at any later time:
    no file in use has such a name, not even in a later directory of the same name. Raises OSError.
    """
    doomed = []
    for path in paths:
        aside = path.with_name(path.name + _DELETED)
        try:
            path.rename(aside)
        except FileNotFoundError:
            continue
        doomed.append(aside)
    return doomed


def remove(paths: Sequence[Path]) -> None:
    """Remove files and whole directories, in order; what is not there is passed over. Raises OSError."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def finish(data: Path) -> None:
    """Remove what an interrupted `create` or `discard` left. Raises OSError."""
    with os.scandir(data) as entries:
        for entry in entries:
            if entry.name.endswith((_CREATING, _DELETED)) and entry.is_dir(follow_symlinks=False):
                try:
                    shutil.rmtree(entry.path)
                except OSError as error:  # nobody is served from it
                    logger.error("%s: not removed: %s", entry.path, error)


def served(data: Path) -> Iterator[tuple[TopicPartition, str]]:
    """Every partition that lies in `data`, with its topic's id, "" if that cannot be read."""
    with os.scandir(data) as entries:
        for entry in entries:
            match = _SERVED.fullmatch(entry.name)
            if match is not None and entry.is_dir(follow_symlinks=False):
                name = TopicPartition(match["topic"], int(match["partition"]))
                try:
                    topic_id = topic_id_in(entry.path)
                except OSError as error:
                    logger.error("%s", error)
                    topic_id = ""
                yield name, topic_id


def topic_id_in(directory: str | Path) -> str:
    """The id of the topic that a partition's directory belongs to, "" if it cannot be read.

    Raises OSError. A start asks for each of ten thousand directories, hence the plain calls.
    """
    try:
        fd = os.open(f"{directory}/{TOPIC_ID_FILE}", os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        text = os.read(fd, _MAX_FILE_NAME).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    return text if _TOPIC_ID.fullmatch(text) else ""


def _aside(data: Path, name: TopicPartition, topic_id: str, suffix: str) -> Path:
    rest = f"-{name.partition}.{topic_id}{suffix}"
    return data / (name.topic[: _MAX_FILE_NAME - len(rest)] + rest)
