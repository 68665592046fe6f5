"""Schemas and their ids, kept in ZooKeeper: a library, no server to run."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from folkmoot.coordination import schema_ids
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe, SessionLost
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import ClosedError, SchemaNotFound
from folkmoot.schemas.avro.identity import Schema, canonical

SESSION_TIMEOUT = 10.0
ATTEMPTS = 3
MAX_CACHED = 10_000
"""Of texts, and of ids; more are read again when they are needed."""

_T = TypeVar("_T")


class SchemaRegistry:
    """Registers schemas and looks them up: one schema has one id, one id names one schema, for ever.

    Which texts are the same schema is told by `identity`; ids are given by `schema_ids`. Because an
    id never changes its meaning, what was found is cached; what was not found is asked again.

    `zookeeper` is a connect string, something that opens a session, or a session. A session of its
    own is opened when the first question needs one, replaced when it was lost, and ended by `close`;
    a session that was given stays the giver's. All methods may be called from any thread.
    """

    def __init__(self, zookeeper: str | Connect | Session) -> None:
        self._given: Session | None = None
        self._connect: Connect | None = None
        if isinstance(zookeeper, str) or callable(zookeeper):
            self._connect = connector(zookeeper)
        else:
            self._given = zookeeper
        self._lock = threading.Lock()
        self._own: Session | None = None
        self._closed = False
        self._ids: dict[tuple[str, str], int] = {}
        self._texts: dict[int, str] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """The id of `schema`, which is a version of `subject` from now on.

        The same schema gets the same id under every subject. Raises InvalidSchema, InvalidName.
        """
        text = canonical(schema)
        number = self._ids.get((subject, text))
        if number is None:
            number = self._run(lambda: schema_ids.register(subject, text))
            _remember(self._ids, (subject, text), number)
            _remember(self._texts, number, text)
        return number

    def get(self, number: int) -> str:
        """The schema that an id names, as canonical text. Raises SchemaNotFound."""
        text = self._texts.get(number)
        if text is None:
            text = self._run(lambda: schema_ids.text_of(number))
            if text is None:
                raise SchemaNotFound(f"no schema has the id {number} in this cluster")
            _remember(self._texts, number, text)
        return text

    def latest(self, subject: str) -> tuple[int, str]:
        """The id and the text of a subject's newest version. Raises SchemaNotFound."""
        found = self._run(lambda: schema_ids.latest(subject))
        if found is None:
            raise SchemaNotFound(f"no schema is registered under the subject {subject}")
        return found

    def versions(self, subject: str) -> list[int]:
        """The ids of a subject's versions, oldest first. Raises SchemaNotFound."""
        found = self._run(lambda: schema_ids.versions_of(subject))
        if not found:
            raise SchemaNotFound(f"no schema is registered under the subject {subject}")
        return found

    def subjects(self) -> list[str]:
        """All subjects, sorted."""
        return self._run(schema_ids.subjects)

    def close(self) -> None:
        """End the session that was opened here; what is cached can still be asked for."""
        with self._lock:
            self._closed = True
            if self._own is not None:
                self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, recipe: Callable[[], Recipe[_T]]) -> _T:
        """Carry a recipe out. All of them may be done again in another session, done before or not."""
        for _ in range(ATTEMPTS - 1):
            try:
                return execute(self._session(), recipe())
            except SessionLost:
                if self._connect is None:
                    raise
        return execute(self._session(), recipe())

    def _session(self) -> Session:
        with self._lock:
            if self._closed:
                raise ClosedError("the schema registry was closed: open another one")
            if self._given is not None:
                return self._given
            if self._connect is not None and _is_over(self._own):
                self._own = self._connect(SESSION_TIMEOUT)
            assert self._own is not None
            return self._own


def _is_over(store: Session | None) -> bool:
    return store is None or store.state is SessionState.LOST


_K = TypeVar("_K")
_V = TypeVar("_V")


def _remember(cache: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep an answer; what was kept first goes when there are too many."""
    cache[key] = value
    while len(cache) > MAX_CACHED:
        cache.pop(next(iter(cache)), None)
