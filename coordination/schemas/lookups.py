"""Reads of the registry: everything that can change is read after a Sync.

The content of an id and the id of a guid never change, so a Sync is needed only before a negative answer.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import unquote
from uuid import UUID

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import nodes
from folkmoot.coordination.schemas.names import DEFAULT_CONTEXT, SubjectName
from folkmoot.coordination.schemas.nodes import Content, StoredReference, Subject
from folkmoot.coordination.zookeeper.operations import Exists, Recipe, Sync, WatchCallback
from folkmoot.coordination.zookeeper.recipes import children, read, retry_on_connection_loss
from folkmoot.protocol.errors import InvalidSchema, SchemaNotFound

_T = TypeVar("_T")

MAX_REFERENCES = 1_000
"""Limit of the schemas that one refers to, directly or through others."""


def content_of(context: str, number: int) -> Recipe[Content | None]:
    """Return what an id names, None if it is not in use. Raises Malformed."""
    if number < 1:
        return None
    return (yield from _read_certainly(nodes.content_decoder, paths.schema_id(context, number)))


def unknown_id(context: str, number: int | UUID) -> SchemaNotFound:
    if isinstance(number, UUID):
        return SchemaNotFound(f"no schema has the guid {number} in this cluster")
    where = "" if context == DEFAULT_CONTEXT else f" in context {context}"
    return SchemaNotFound(f"no schema has the id {number}{where} in this cluster")


def collect_referred(
    context: str,
    references: Sequence[StoredReference],
    content: Callable[[str, int], Recipe[Content]],
) -> Recipe[list[str]]:
    """Return the schemas that one in `context` refers to, each after those that it refers to itself.

    `content` reads what an id of a context names. Raises InvalidSchema if there are too many, and its errors.
    """
    found: dict[tuple[str, int], str] = {}
    # The next one is last; True: the schemas that it refers to were visited.
    stack = [(key, False) for key in reversed(_keys(context, references))]
    while stack:
        key, is_open = stack.pop()
        if key in found:
            continue
        named = yield from content(*key)
        if is_open or not named.references:
            found[key] = named.schema
        else:
            stack.append((key, True))
            stack += ((each, False) for each in reversed(_keys(key[0], named.references)))
        if len(found) > MAX_REFERENCES:
            raise InvalidSchema(f"the schema refers to more than {MAX_REFERENCES} others")
    return list(found.values())


def _keys(context: str, references: Sequence[StoredReference]) -> list[tuple[str, int]]:
    return [(each.resolve(context).context, each.id) for each in references]


def id_of(context: str, guid: str) -> Recipe[int | None]:
    """Return the id of a guid in a context, None if it has none there. Raises Malformed."""
    found = yield from _read_certainly(nodes.number_decoder, paths.schema_guid(context, guid))
    return None if found is None else found.id


def locate(guid: UUID) -> Recipe[tuple[str, int]]:
    """Return the first context with a schema, and its id there. Raises SchemaNotFound, Malformed."""
    found = yield from contexts()
    for context in sorted(found, key=lambda each: (each != DEFAULT_CONTEXT, each)):
        number = yield from id_of(context, str(guid))
        if number is not None:
            return context, number
    raise unknown_id(DEFAULT_CONTEXT, guid)


def subject_of(name: SubjectName, watch: WatchCallback | None = None) -> Recipe[Subject]:
    """Return a subject, without versions if it does not exist, and watch it. Raises Malformed.

    A subject that does not exist is not watched.
    """
    yield from sync()
    found, _ = yield from read(nodes.subject_decoder, paths.subject(name.context, name.name), watch)
    return found or Subject()


def subjects(context: str, prefix: str = "", *, deleted: bool = False) -> Recipe[list[SubjectName]]:
    """Return a context's subjects with live versions, or those with softly `deleted` ones only."""
    listing = paths.DELETED_SUBJECTS if deleted else paths.LIVE_SUBJECTS
    yield from sync()
    names = yield from children(f"{paths.schema_context(context)}/{listing}")
    beginning = paths.quoted(prefix)
    return [SubjectName(context, unquote(name)) for name in names if name.startswith(beginning)]


def contexts() -> Recipe[list[str]]:
    """Return all contexts in use, and the default one."""
    yield from sync()
    names = yield from children(paths.SCHEMA_CONTEXTS)
    return sorted({DEFAULT_CONTEXT, *map(unquote, names)})


def users(context: str, number: int) -> Recipe[list[SubjectName]]:
    """Return the subjects that have a version with that id, live or softly deleted."""
    yield from sync()
    names = yield from children(paths.schema_id(context, number))
    return [SubjectName(context, unquote(name)) for name in sorted(names)]


def referrers(name: SubjectName, version: int) -> Recipe[list[int]]:
    """Return the ids of the live versions that refer to a version of a subject."""
    yield from sync()
    names = yield from children(paths.subject(name.context, name.name))
    parts = [each.split("-") for each in names]
    return sorted({int(each[1]) for each in parts if each[0] == str(version)})


def is_known(context: str) -> Recipe[bool]:
    """Return whether a context's nodes exist."""
    yield from sync()
    path = paths.schema_counter(context)
    return (yield from retry_on_connection_loss(Exists(path))) is not None


def sync() -> Recipe[None]:
    """Wait until our server has every change that was answered before."""
    yield from retry_on_connection_loss(Sync())


def _read_certainly(decoder: msgspec.json.Decoder[_T], path: str) -> Recipe[_T | None]:
    found, _ = yield from read(decoder, path)
    if found is None:
        yield from sync()
        found, _ = yield from read(decoder, path)
    return found
