"""Named producers: a later attempt continues where the earlier one stopped, and fences it.

A task may run again, perhaps in another process beside the first. It writes sink epochs: the same records in
the same order in each attempt at one. The name's node holds the producer id, the producer's epoch, the sink
epoch, and where that begins in each partition: the first sequence, and the end of the log before it. Brokers
know a producer's next sequence; the records between the two are written.

- **An attempt** takes the next producer epoch, by compare-and-set. A new sink epoch gets a new id when half
  of the producer epochs are used: the others are for attempts at one sink epoch.
- **A new sink epoch** asks the brokers where it begins, and notes that before it writes. All of the earlier
  one is in the log by then.
- **A repeated sink epoch** finds the note. It asks how far the attempt before got, checks that these are its
  own records, and continues behind them, in batches that continue sequences over producer epochs. They are
  refused if the other attempt has written since, and fence it otherwise. If the records differ (the rows
  came in another order), it notes that by `forget_starts` and fails: the next attempt writes all of its own,
  at least once.
- **A sink epoch that was divided into other tasks before** has names without a task in this attempt
  (`find_other_attempts`): their records are in the log twice. The job lets the sink epoch begin again under
  these names, then fails; after a death before that the next attempt finds them once more.

An attempt that dies before its note has written nothing. After a lost reply, `attempt` identifies the writer
of the node. The later of two attempts is served; the earlier one gets ProducerFenced.

Each new name removes some others that have not been written for a week: brokers have forgotten their
producers by then (`producer_id_expiry`), so that they begin anew anyway. Transactional ids
(producers/claims.py) stay. They have one sink epoch: such a producer writes its node once, and may live long.
"""

from bisect import bisect
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from folkmoot.coordination import paths, producer_ids
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH
from folkmoot.protocol.errors import ProducerFenced

RETENTION: Final = 7 * 24 * 3600 * 1000
"""Milliseconds for which an unwritten name is kept."""
NAMES_CHECKED: Final = 16
"""Names that a new one looks at."""
TRANSACTIONAL: Final = "transactional/"
"""The prefix of names of transactional ids."""


class PartitionStart(NamedTuple):
    """The sequence of a sink epoch's first record in a partition, and the end of the log before it."""

    sequence: int
    offset: int


class TopicStart(NamedTuple):
    """A topic in a sink epoch: its number of partitions at the first attempt, by which each attempt places
    rows, and where it begins in each partition, also in those added since."""

    partitions: int
    starts: list[PartitionStart]


class ProducerClaim(msgspec.Struct, frozen=True):
    """A name's node. `topics` are by id. `since` is the producer epoch of the first attempt at the sink
    epoch: batches with an earlier one belong to other sink epochs."""

    producer_id: int
    epoch: int
    sink_epoch: int
    attempt: str
    topics: dict[str, TopicStart] = {}
    since: int = 0


_decoder = msgspec.json.Decoder(ProducerClaim)


def claim_name(name: str, sink_epoch: int, attempt: str) -> Recipe[ProducerClaim]:
    """Become the writer of a sink epoch under this name; `attempt` is unique.

    Raises ProducerFenced if a later sink epoch has begun, Malformed.
    """
    path = paths.producer_name(name)
    while True:
        found, stat = yield from recipes.read(_decoder, path)
        if found is not None and found.attempt == attempt:
            return found
        if found is not None and sink_epoch < found.sink_epoch:
            raise ProducerFenced(
                f"producer {name} has begun sink epoch {found.sink_epoch}: sink epoch {sink_epoch} is over "
                "(if it runs from an older copy of a checkpoint, give it another name)"
            )
        is_again = found is not None and sink_epoch == found.sink_epoch
        last = MAX_PRODUCER_EPOCH if is_again else MAX_PRODUCER_EPOCH // 2
        if found is not None and found.epoch < last:
            epoch = found.epoch + 1
            inherited = (found.topics, found.since) if is_again else ({}, epoch)
            claim = ProducerClaim(found.producer_id, epoch, sink_epoch, attempt, *inherited)
        elif is_again:
            raise ProducerFenced(
                f"producer {name} has tried sink epoch {sink_epoch} in all producer epochs up to "
                f"{MAX_PRODUCER_EPOCH}"
            )
        else:
            ids = yield from producer_ids.allocate(1)
            claim = ProducerClaim(ids.start, 0, sink_epoch, attempt)
        data = msgspec.json.encode(claim)
        try:
            yield zk.Create(path, data) if stat is None else zk.Set(path, data, stat.version)
        except zk.NoNode:
            yield from recipes.ensure(paths.PRODUCER_NAMES)
        except (zk.BadVersion, zk.NodeExists, zk.ConnectionLost):
            pass
        else:
            if stat is None:
                yield from _forget_some(path)
            return claim


def note_starts(
    name: str, attempt: str, topic_id: str, starts: list[PartitionStart]
) -> Recipe[TopicStart]:
    """Note where the sink epoch begins in the partitions of a topic, before anything is written to them; an
    earlier note stays → all that is noted of the topic.

    Raises ProducerFenced if another attempt has taken the name over, Malformed.
    """

    def noted(topics: dict[str, TopicStart]) -> dict[str, TopicStart]:
        known = topics.get(topic_id, TopicStart(len(starts), []))
        start = known._replace(starts=known.starts + starts[len(known.starts) :])
        return {**topics, topic_id: start}

    return (yield from _note(name, attempt, noted)).topics[topic_id]


def forget_starts(name: str, attempt: str) -> Recipe[None]:
    """Let the sink epoch begin behind all that was written of it: those are not its records.

    Raises ProducerFenced if another attempt has taken the name over, Malformed.
    """
    yield from _note(name, attempt, lambda topics: {})


def find_other_attempts(
    prefix: str, sink_epoch: int, numbers: Collection[int]
) -> Recipe[dict[str, str]]:
    """The names of `prefix` and another number than these that have begun the sink epoch → the attempt.

    Raises Malformed.
    """
    others = {}
    below = paths.producer_name(prefix)
    for name in sorted((yield from recipes.children(paths.PRODUCER_NAMES))):
        path = f"{paths.PRODUCER_NAMES}/{name}"
        number = path.removeprefix(below)
        if path == number or not number.isdecimal() or int(number) in numbers:
            continue
        found, _ = yield from recipes.read(_decoder, path)
        if found is not None and found.sink_epoch == sink_epoch and found.topics:
            others[f"{prefix}{number}"] = found.attempt
    return others


def _note(
    name: str, attempt: str, change: Callable[[dict[str, TopicStart]], dict[str, TopicStart]]
) -> Recipe[ProducerClaim]:
    """Change the note of the sink epoch's topics. Raises ProducerFenced, Malformed."""
    fenced = ProducerFenced(f"producer {name} was taken over by another attempt")

    def changed(found: ProducerClaim) -> ProducerClaim:
        if found.attempt != attempt:
            raise fenced
        return msgspec.structs.replace(found, topics=change(found.topics))

    try:
        return (yield from recipes.update(_decoder, paths.producer_name(name), changed))
    except zk.NoNode:
        raise fenced from None


def _forget_some(new: str) -> Recipe[None]:
    """Remove old names among those that follow a new one in the alphabet."""
    now = yield from recipes.retry_on_connection_loss(zk.Exists(new))
    names = yield from recipes.children(paths.PRODUCER_NAMES)
    others = sorted(each for each in names if not each.startswith(paths.quoted(TRANSACTIONAL)))
    index = bisect(others, new.rpartition("/")[2])
    for name in [*others[index:], *others[:index]][:NAMES_CHECKED]:
        path = f"{paths.PRODUCER_NAMES}/{name}"
        stat = yield from recipes.retry_on_connection_loss(zk.Exists(path))
        if now is not None and stat is not None and now.mtime - stat.mtime > RETENTION:
            with suppress(zk.BadVersion, zk.NoNode, zk.ConnectionLost):
                yield zk.Delete(path, stat.version)
