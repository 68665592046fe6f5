"""A cache of schemas by id, which never change."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Generic, TypeVar

from folkmoot.coordination.schemas.lookups import collect_referred, content_of, unknown_id
from folkmoot.coordination.schemas.nodes import Content, StoredReference
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.schemas.avro.references import resolve

MAX_CACHED_CHARACTERS = 16_000_000
"""Entries of schemas as given, and as many of resolved ones. The least recently used one goes first."""

Key = tuple[str, int]
"""A context and an id of it."""

_V = TypeVar("_V")


class Cache(Generic[_V]):
    """A cache whose entries say how large they are. May be used from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._entries: OrderedDict[Key, tuple[_V, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> _V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: _V, size: int) -> None:
        with self._lock:
            if key not in self._entries:
                self._entries[key] = value, size
                self._size += size
            while self._size > self._most:
                _, (_, freed) = self._entries.popitem(last=False)
                self._size -= freed


class Contents:
    """Reads what ids name, and the schemas that those refer to."""

    def __init__(self) -> None:
        self._contents: Cache[Content] = Cache(MAX_CACHED_CHARACTERS)
        self._resolved: Cache[str] = Cache(MAX_CACHED_CHARACTERS)

    def cached(self, context: str, number: int) -> Content | None:
        """Return a cached schema."""
        return self._contents.get((context, number))

    def cached_resolved(self, context: str, number: int) -> str | None:
        """The same, of `resolved`."""
        return self._resolved.get((context, number))

    def content(self, context: str, number: int) -> Recipe[Content]:
        """All that an id names. Raises SchemaNotFound, Malformed."""
        content = self.cached(context, number)
        if content is None:
            content = yield from content_of(context, number)
            if content is None:
                raise unknown_id(context, number)
            self.cache(context, number, content)
        return content

    def cache(self, context: str, number: int, content: Content) -> None:
        self._contents.put((context, number), content, 500 + len(content.schema))

    def resolved(self, context: str, number: int) -> Recipe[str]:
        """The schema that an id names, with all it refers to. Raises SchemaNotFound, Malformed."""
        text = self.cached_resolved(context, number)
        if text is None:
            content = yield from self.content(context, number)
            texts = yield from self.referred(context, content.references)
            text = resolve(content.schema, texts, strict=False)
            self._resolved.put((context, number), text, 200 + len(text))
        return text

    def referred(self, context: str, references: Sequence[StoredReference]) -> Recipe[list[str]]:
        """As `lookups.collect_referred`."""
        return (yield from collect_referred(context, references, self.content))
