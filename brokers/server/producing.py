"""Producing: what becomes of the batches of a request."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from folkmoot.brokers.server.context import NO_OFFSET, Answer, Context, Gathered, Later, code_of
from folkmoot.brokers.server.metadata_cache import LEADER_EPOCH
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.produced import Duplicate, Fresh
from folkmoot.protocol.errors import FolkmootError, Overloaded, UnknownTopicOrPartition
from folkmoot.protocol.messages import ProduceEntry, ProduceRequest, ProduceResponse, ProduceResult
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.wire import message_of

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""So many bytes wait for directories of new partitions at most; what is more may come again."""


def produce(
    request: ProduceRequest, payloads: Sequence[memoryview], now: Now, context: Context
) -> Answer | Later | None:
    """Append, partition by partition, in the order given. acks=-1 is 1 while there is one replica.

    What goes to a partition that is still to be made waits for it; the rest is appended at once.
    """
    outcome = Gathered(len(payloads), ProduceResponse)
    groups: dict[TopicPartition, list[int]] = {}
    for number, entry in enumerate(request.entries):
        groups.setdefault(TopicPartition(entry.topic, entry.partition), []).append(number)
    for partition, numbers in groups.items():
        batches = {number: payloads[number] for number in numbers}
        entries = {number: request.entries[number] for number in numbers}
        topic_id = _to_be_made(entries, context)
        if topic_id is None:
            outcome.add(_append(partition, entries, batches, now, context))
            continue
        length = sum(map(len, batches.values()))
        if context.waiting_bytes + length > MAX_WAITING_BYTES:
            full = Overloaded("too many bytes wait for directories of new partitions: come again")
            outcome.add(_refuse_all(entries, full, context))
            continue
        context.waiting_bytes += length
        append = partial(_append_later, outcome, partition, entries, batches, now, context)
        context.newcomers.when_made(partition, topic_id, append)
    if request.acks == 0:
        return None
    return outcome.so_far()


def _to_be_made(entries: Mapping[int, ProduceEntry], context: Context) -> str | None:
    """The topic's id, if an entry may be appended and its partition has no log yet."""
    for entry in entries.values():
        try:
            if context.written(entry) is None:
                return entry.topic_id
        except FolkmootError:
            continue
    return None


def _append_later(
    outcome: Gathered,
    partition: TopicPartition,
    entries: Mapping[int, ProduceEntry],
    batches: Mapping[int, memoryview],
    now: Now,
    context: Context,
    failure: FolkmootError | None,
) -> None:
    """The partition is made, or could not be. Its topic may have gone since."""
    context.waiting_bytes -= sum(map(len, batches.values()))
    if failure is None:
        outcome.add(_append(partition, entries, batches, now, context))
    else:
        outcome.add(_refuse_all(entries, failure, context))


def _refuse_all(
    entries: Mapping[int, ProduceEntry], error: FolkmootError, context: Context
) -> dict[int, ProduceResult]:
    return {number: _not_produced(entry, error, context) for number, entry in entries.items()}


def _append(
    partition: TopicPartition,
    entries: Mapping[int, ProduceEntry],
    batches: Mapping[int, memoryview],
    now: Now,
    context: Context,
) -> dict[int, ProduceResult]:
    """Append to one partition by one write; a batch that cannot be taken does not hold up others."""
    results: dict[int, ProduceResult] = {}
    target: Log | None = None
    mine: list[int] = []
    for number, entry in entries.items():
        try:
            target = context.written(entry) or target
            if target is None:
                raise UnknownTopicOrPartition(f"{partition} has no log on this broker any more")
            mine.append(number)
        except FolkmootError as error:
            results[number] = _not_produced(entry, error, context)
    if target is None:
        return results
    fresh: dict[int, Fresh] = {}
    try:
        admitted = target.admit([batches[number] for number in mine])
        for number, each in zip(mine, admitted, strict=True):
            if isinstance(each, Fresh):
                fresh[number] = each
            elif isinstance(each, Duplicate):
                results[number] = ProduceResult(*partition, 0, "", each.base_offset, now.wall)
            else:
                results[number] = _not_produced(entries[number], each, context)
        offsets = target.write(list(fresh.values()), now=now.wall, leader_epoch=LEADER_EPOCH)
    except FolkmootError as error:
        for number in mine:
            if number not in results:
                results[number] = _not_produced(entries[number], error, context)
        return results
    for number, offset in zip(fresh, offsets, strict=True):
        results[number] = ProduceResult(*partition, 0, "", offset, now.wall)
    appended = sum(each.header.length for each in fresh.values())
    context.logs.appended_bytes += appended
    context.parked.appended(partition, appended)
    return results


def _not_produced(entry: ProduceEntry, error: FolkmootError, context: Context) -> ProduceResult:
    return ProduceResult(
        *(entry.topic, entry.partition, code_of(error), message_of(error), NO_OFFSET, NO_OFFSET),
        leader=context.hint(entry, error),
    )
