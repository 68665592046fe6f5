"""Producers with a name: who comes back under it goes on where the one before stopped, and fences it.

A task that may be run again, by another process and perhaps beside the first, writes rounds of records:
the same records in the same order whenever a round is run again. Its name's node holds the producer id,
the epoch, the round, and where the round begins in each partition of a topic, under the topic's id: the
sequence of its first record, and the offset behind which that lies. Brokers keep the sequence behind the
last record of a producer; what lies between the two is written.

- **Whoever comes** takes the next epoch, by compare-and-set. A new round has a new id where half of the
  epochs are used up: the other half is for attempts at one round.
- **A new round** asks the brokers where it begins, and notes that before it writes anything. Attempts at an
  earlier round have nothing left to write: all of that round is in the log.
- **A round that runs again** finds where it begins. It asks how far the attempt before got, looks whether
  these are its own records, and goes on behind them, with batches that say that sequences go on over
  epochs: if that attempt has written meanwhile they are refused, and once one is in the log it is fenced.
  If they are others (rows that came in another order), it notes that (`begin_again`) and gives up: the
  next one writes all of its own behind them, at least once, and nothing is lost.
- **A round may have been cut into other tasks before**, each with a name of its own. Whoever ends all of a
  round looks for names of tasks that it did not have (`begun_by_others`): their records are there twice.
  It lets the round begin again under these, then says so; who dies before that finds them once more.

A holder that dies before it has noted where its round begins has written nothing; one that dies after
that leaves all that the next one needs. A lost reply is answered by reading: `attempt` says whose the
node is. Of two that hold one name at a time the later one is served, and the earlier one told
ProducerFenced here, or by the brokers.

Names of queries that are gone for good would stay: so who comes under a new one looks at some of the others,
and removes those that nobody has written for a week. Brokers have forgotten their producers by then
(`producer_id_expiry`), so that whoever comes under such a name after all begins anew, as under a new one.
Who has read it just before it is removed finds that it has changed. Transactional ids (producers/claims.py)
stay: such a producer writes its node once, and may live for long. All that it does is one round.
"""

from bisect import bisect
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from folkmoot.coordination import paths, producer_ids
from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    NodeExists,
    NoNode,
    Recipe,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import (
    children,
    ensure,
    read,
    retry_on_connection_loss,
    update,
)
from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH
from folkmoot.protocol.errors import ProducerFenced

KEPT: Final = 7 * 24 * 3600 * 1000
"""Names that nobody has written for so many ms may be removed …"""
TRANSACTIONAL: Final = "transactional/"
"""What names of transactional ids begin with."""
LOOKED_AT: Final = 16
"""… and who comes under a new one looks at so many."""


class Begin(NamedTuple):
    """The sequence of a round's first record in a partition, and the log's end before it was written."""

    sequence: int
    offset: int


class Begun(NamedTuple):
    """A topic in a round: how many partitions it had when the round began there, by which rows are placed
    whoever runs it again, and where the round begins in each, those that were added since behind them."""

    partitions: int
    begins: list[Begin]


class Takeover(msgspec.Struct, frozen=True):
    """A name's node. `topics` are known by their ids: one that is created anew has nothing of the round.

    `since` is the epoch of the first attempt at the round: what has an earlier one is of another, also
    where a leader that was replaced has told of an earlier end.
    """

    producer_id: int
    epoch: int
    round: int
    attempt: str
    topics: dict[str, Begun] = {}
    since: int = 0


_decoder = msgspec.json.Decoder(Takeover)
_encode = msgspec.json.encode


def take_over(name: str, round_: int, attempt: str) -> Recipe[Takeover]:
    """Become the one who writes a round under this name; `attempt` is nobody else's.

    Raises ProducerFenced if a later round has begun, Malformed.
    """
    path = paths.producer_name(name)
    while True:
        found, stat = yield from read(_decoder, path)
        if found is not None and found.attempt == attempt:
            return found
        if found is None or stat is None:
            taken = yield from _anew(round_, attempt)
            try:
                yield Create(path, _encode(taken))
            except NoNode:
                yield from ensure(paths.PRODUCER_NAMES)
                continue
            except (NodeExists, ConnectionLost):
                continue
            yield from _forget_some(path)
            return taken
        if round_ < found.round:
            raise ProducerFenced(
                f"producer {name} has begun round {found.round}: round {round_} is over (if it runs "
                "from an older copy of a checkpoint, give it another name)"
            )
        last = MAX_PRODUCER_EPOCH if round_ == found.round else MAX_PRODUCER_EPOCH // 2
        if found.epoch < last:
            again, epoch = round_ == found.round, found.epoch + 1
            noted = (found.topics, found.since) if again else ({}, epoch)
            taken = Takeover(found.producer_id, epoch, round_, attempt, *noted)
        elif round_ > found.round:
            taken = yield from _anew(round_, attempt)
        else:
            raise ProducerFenced(
                f"producer {name} has tried round {round_} in all epochs up to {MAX_PRODUCER_EPOCH}"
            )
        try:
            yield Set(path, _encode(taken), stat.version)
        except (BadVersion, NoNode, ConnectionLost):
            continue
        return taken


def begin(name: str, attempt: str, topic_id: str, begins: list[Begin]) -> Recipe[Begun]:
    """Note where the round begins in the partitions of a topic, before anything is written to them; what
    was noted before stays → all that is noted of the topic.

    Raises ProducerFenced if another attempt has taken the name over, Malformed.
    """

    def noted(topics: dict[str, Begun]) -> dict[str, Begun]:
        known = topics.get(topic_id, Begun(len(begins), []))
        begun = known._replace(begins=known.begins + begins[len(known.begins) :])
        return {**topics, topic_id: begun}

    return (yield from _note(name, attempt, noted)).topics[topic_id]


def begin_again(name: str, attempt: str) -> Recipe[None]:
    """Let the round begin behind all that was written of it: those are not its records.

    Raises ProducerFenced if another attempt has taken the name over, Malformed.
    """
    yield from _note(name, attempt, lambda topics: {})


def begun_by_others(prefix: str, round_: int, numbers: Collection[int]) -> Recipe[dict[str, str]]:
    """Of the names that are `prefix` and a number, those with none of these numbers under which the round
    has begun → which attempt it was. Raises Malformed."""
    others = {}
    below = paths.producer_name(prefix)
    for each in sorted((yield from children(paths.PRODUCER_NAMES))):
        path = f"{paths.PRODUCER_NAMES}/{each}"
        number = path.removeprefix(below)
        if path == number or not number.isdecimal() or int(number) in numbers:
            continue
        found, _ = yield from read(_decoder, path)
        if found is not None and found.round == round_ and found.topics:
            others[f"{prefix}{number}"] = found.attempt
    return others


def _note(
    name: str, attempt: str, change: Callable[[dict[str, Begun]], dict[str, Begun]]
) -> Recipe[Takeover]:
    """Change what is noted of the round's topics, as long as the name is this attempt's."""

    def changed(found: Takeover) -> Takeover:
        if found.attempt != attempt:
            raise _taken_over(name)
        return msgspec.structs.replace(found, topics=change(found.topics))

    try:
        return (yield from update(_decoder, paths.producer_name(name), changed))
    except NoNode:
        raise _taken_over(name) from None


def _forget_some(new: str) -> Recipe[None]:
    """Remove old names among those behind a new one in their order, which is by chance."""
    now = yield from retry_on_connection_loss(Exists(new))
    names = yield from children(paths.PRODUCER_NAMES)
    others = sorted(each for each in names if not each.startswith(paths.quoted(TRANSACTIONAL)))
    place = bisect(others, new.rpartition("/")[2])
    for each in [*others[place:], *others[:place]][:LOOKED_AT]:
        path = f"{paths.PRODUCER_NAMES}/{each}"
        stat = yield from retry_on_connection_loss(Exists(path))
        if now is not None and stat is not None and now.mtime - stat.mtime > KEPT:
            with suppress(BadVersion, NoNode, ConnectionLost):
                yield Delete(path, stat.version)


def _taken_over(name: str) -> ProducerFenced:
    return ProducerFenced(f"producer {name} was taken over by another attempt")


def _anew(round_: int, attempt: str) -> Recipe[Takeover]:
    ids = yield from producer_ids.take(1)
    return Takeover(ids.start, 0, round_, attempt)
