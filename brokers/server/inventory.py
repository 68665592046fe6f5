"""The facts about a cluster in a broker's data directory, read without changing it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from folkmoot.brokers.storage.files.cluster_facts import load_facts
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochStarts
from folkmoot.brokers.storage.log_manager import (
    IDENTITY_FILE,
    LOCK_FILE,
    PartitionDirectory,
    identity_in,
    partition_directories,
)
from folkmoot.brokers.storage.notes import Notes, load_notes
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.segment import Damage, SegmentName, SegmentReader
from folkmoot.coordination.cluster.restoring import ReplicaOnDisk
from folkmoot.protocol.errors import ConfigError


class Inventory(msgspec.Struct, frozen=True):
    """The facts of one broker; `directory` is the id of its data directory. `stopped`: no broker ran on it,
    and the logs have not grown meanwhile."""

    broker: int
    cluster: str
    directory: str
    stopped: bool
    producer_id: int
    schema_id: int
    replicas: list[ReplicaOnDisk]


def take_inventory(data: Path) -> Inventory:
    """Read a data directory. Raises ConfigError, OSError."""
    identity = identity_in(data)
    if identity is None:
        raise ConfigError(f"{data} is no data directory: it has no {IDENTITY_FILE}")
    with _hold_lock(data) as is_stopped:
        notes = load_notes(data)
        directories = sorted(partition_directories(data))
        replicas = [_read_replica(identity.broker_id, each, notes) for each in directories]
    return Inventory(
        *(identity.broker_id, identity.cluster, identity.directory, is_stopped),
        *(notes.ids.producer, notes.ids.schema, replicas),
    )


@contextmanager
def _hold_lock(data: Path) -> Iterator[bool]:
    """Keep brokers from starting on it; yield False if one runs."""
    try:
        lock = os.open(data / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        yield True
        return
    try:
        is_free = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(lock)


def _read_replica(broker: int, each: PartitionDirectory, notes: Notes) -> ReplicaOnDisk:
    name, facts = load_facts(each.path)
    last_epoch, log_end = _log_end(each.path, notes.recovery_points.get(each.path.name))
    replica = ReplicaOnDisk(
        *(broker, name or each.topic_id, each.topic_id, each.partition),
        leader_epoch=notes.leader_epochs.get(each.path.name, NO_EPOCH),
        last_epoch=last_epoch,
        log_end=log_end,
    )
    if facts is None:
        return replica
    return msgspec.structs.replace(replica, **msgspec.structs.asdict(facts))


def _log_end(directory: Path, point: RecoveryPoint | None) -> tuple[int, int]:
    """The leader epoch of the log's last record, and the end of its whole batches."""
    names = [SegmentName.parse(path.name) for path in directory.iterdir()]
    newest = max((each for each in names if each is not None), default=None)
    starts = EpochStarts.load(directory)
    last_epoch, log_end = NO_EPOCH, 0 if point is None else point.end_offset
    if newest is None:
        return max((epoch for epoch, _ in starts), default=NO_EPOCH), log_end
    position, offset = 0, newest.base
    if point is not None and point.segment == newest.base and not newest.end:
        position, offset = point.size, point.end_offset
    log_end = max(log_end, offset)
    size = (directory / f"{newest.stem}.log").stat().st_size
    with closing(SegmentReader(directory, newest, size, 0)) as reader:
        for batch in reader.batches(position, offset):
            if isinstance(batch, Damage):
                continue
            last_epoch = max(last_epoch, batch[0].leader_epoch)
            log_end = max(log_end, batch[0].next_offset)
    # Records after the end were cut or lost, though the table of epochs still has them.
    remaining = (epoch for epoch, offset in starts if offset < log_end)
    return max(last_epoch, *remaining, NO_EPOCH), log_end
