"""Schema ids: one text has one id and one id has one text, for ever.

Registering is one transaction: the counter moves on by its version, the id's node and the text's
node are created, the subject's list of versions is written by its version. A registrar that dies
has done all of it or nothing; of two that race one is refused, reads, and finds the other's id or
takes the next. No id comes out of anybody's memory, so no stale holder of anything can give one out
twice. A lost reply is answered by reading: the text's node tells whether the id was given.

These nodes are never deleted and, but for counter and subjects, never written again, so whatever
was read of an id or a text holds for ever and may be cached. A server may lag behind the one that
took a registration; before a recipe says that something is not there, it asks by a transaction, which
the ensemble's leader decides.
"""

from hashlib import sha256
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import (
    Check,
    ConnectionLost,
    Create,
    Multi,
    MultiFailed,
    NodeExists,
    Recipe,
    Set,
    Stat,
    Write,
)
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    children,
    ensure,
    read,
    retry_on_connection_loss,
)
from folkmoot.protocol.errors import InvalidSchema, InvalidSubject

_T = TypeVar("_T")

MAX_TEXT_BYTES = 500_000
"""As stored. ZooKeeper cuts the connection of whoever sends it more than a megabyte."""
MAX_SUBJECT_CHARACTERS = 512
MAX_VERSIONS = 30_000
"""Of one subject; its node holds the id of each."""


class _Id(msgspec.Struct, frozen=True):
    """An id's node: the text that it names."""

    schema: str


class _Text(msgspec.Struct, frozen=True):
    """A text's node: the id that names it."""

    id: int


class _Counter(msgspec.Struct, frozen=True):
    """The counter's node: the last id given."""

    last: int


class _Subject(msgspec.Struct, frozen=True):
    """A subject's node: the ids of its versions, oldest first."""

    versions: list[int]


_encode = msgspec.json.encode
_id_decoder = msgspec.json.Decoder(_Id)
_text_decoder = msgspec.json.Decoder(_Text)
_counter_decoder = msgspec.json.Decoder(_Counter)
_subject_decoder = msgspec.json.Decoder(_Subject)


def register(subject: str, text: str) -> Recipe[int]:
    """The id of `text`, which is a version of `subject` from now on. The same text, the same id.

    Raises InvalidSubject, InvalidSchema (too long), Malformed.
    """
    _check_subject(subject)
    id_data = _id_data(text)
    while True:
        # In this order: who registers the text after this look moves the counter as well.
        counter, counted = yield from read(_counter_decoder, paths.SCHEMA_COUNTER)
        if counter is None or counted is None:
            yield from _create_parents()
            continue
        known, stat = yield from read(_subject_decoder, paths.subject(subject))
        versions = [] if known is None else known.versions
        number = yield from id_of(text)
        if number in versions:
            return number
        writes: list[Write] = []
        following = counter.last + 1
        if number is None:
            writes = [
                Set(paths.SCHEMA_COUNTER, _encode(_Counter(following)), counted.version),
                Create(paths.schema_id(following), id_data),
                Create(paths.schema_text(_digest(text)), _encode(_Text(following))),
            ]
        writes.append(_subject_write(subject, stat, [*versions, number or following]))
        try:
            yield Multi(tuple(writes))
            return number or following
        except MultiFailed as refusal:
            if number is None and refusal.failed == 1 and isinstance(refusal.cause, NodeExists):
                raise Malformed(
                    f"{paths.SCHEMA_COUNTER} says that {counter.last} is the last id, but id "
                    f"{following} exists: set it to the highest child of {paths.SCHEMA_IDS}"
                ) from None
            continue  # another registrar was faster: look again
        except ConnectionLost:
            continue  # done or not: the text's node tells


def id_of(text: str) -> Recipe[int | None]:
    """The id of a text, None if it was not registered as far as our server knows. Raises Malformed."""
    found, _ = yield from read(_text_decoder, paths.schema_text(_digest(text)))
    return None if found is None else found.id


def text_of(number: int) -> Recipe[str | None]:
    """The text that an id names, None if the id was not given to any. Raises Malformed."""
    if number < 1:
        return None
    found = yield from _read_certainly(_id_decoder, paths.schema_id(number))
    return None if found is None else found.schema


def versions_of(subject: str) -> Recipe[list[int]]:
    """The ids of a subject's versions, oldest first; none if there is no such subject."""
    _check_subject(subject)
    found = yield from _read_certainly(_subject_decoder, paths.subject(subject))
    return [] if found is None else found.versions


def latest(subject: str) -> Recipe[tuple[int, str] | None]:
    """The id and the text of a subject's latest version, None if there is no such subject."""
    versions = yield from versions_of(subject)
    if not versions:
        return None
    text = yield from text_of(versions[-1])
    if text is None:
        raise Malformed(f"subject {subject} names id {versions[-1]}, which does not exist")
    return versions[-1], text


def subjects() -> Recipe[list[str]]:
    """All subjects, sorted. What nobody could have written through `register` is not a subject."""
    names = yield from children(paths.SUBJECTS)
    found = [(unquote(name), f"{paths.SUBJECTS}/{name}") for name in names]
    return sorted(subject for subject, path in found if subject and paths.subject(subject) == path)


def _check_subject(subject: str) -> None:
    if not (1 <= len(subject) <= MAX_SUBJECT_CHARACTERS and subject.isprintable()):
        raise InvalidSubject(
            f"subject {subject[:80]!r} is not allowed: use 1 to {MAX_SUBJECT_CHARACTERS} "
            "printable characters"
        )


def _id_data(text: str) -> bytes:
    try:
        data = _encode(_Id(text))
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"the schema is not Unicode text: {error}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidSchema(
            f"the schema takes {len(data)} bytes to store, more than {MAX_TEXT_BYTES}: "
            "split it, or shorten its documentation"
        )
    return data


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _read_certainly(decoder: msgspec.json.Decoder[_T], path: str) -> Recipe[_T | None]:
    """What a node holds, or None if the ensemble agrees that there is none."""
    while True:
        found, _ = yield from read(decoder, path)
        if found is not None:
            return found
        try:
            yield from retry_on_connection_loss(Multi((Check(path),)))
        except MultiFailed:
            return None


def _subject_write(subject: str, stat: Stat | None, versions: list[int]) -> Write:
    if len(versions) > MAX_VERSIONS:
        raise InvalidSchema(f"subject {subject} has {MAX_VERSIONS} versions: use another subject")
    data = _encode(_Subject(versions))
    if stat is None:
        return Create(paths.subject(subject), data)
    return Set(paths.subject(subject), data, stat.version)


def _create_parents() -> Recipe[None]:
    """The nodes that registering writes under, and the counter, which comes last."""
    for path in (paths.SCHEMA_IDS, paths.SCHEMA_TEXTS, paths.SUBJECTS):
        yield from ensure(path)
    yield from ensure(paths.SCHEMA_COUNTER, _encode(_Counter(0)))
