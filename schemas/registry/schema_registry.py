"""Schemas and their ids, kept in ZooKeeper: a library, no server to run."""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from folkmoot.coordination import schema_ids
from folkmoot.coordination.connector import connector
from folkmoot.coordination.schemas.versions import Reference, SchemaVersion, StoredSchema
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe, SessionLost
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import (
    ClosedError,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)
from folkmoot.schemas.avro.compatibility import Finding
from folkmoot.schemas.avro.identity import Schema, canonical

SESSION_TIMEOUT = 10.0
ATTEMPTS = 3
MAX_CACHED = 10_000
"""Of schemas by id; more are read again when they are needed."""

_T = TypeVar("_T")


class SchemaRegistry:
    """Registers schemas and looks them up: one schema has one id, one id names one schema, for ever.

    Subjects have versions; a subject may lie in a context, `:.name:subject`, which has ids of its own.
    What an id names never changes, so it is cached; all else is asked of ZooKeeper each time.

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
        self._texts: dict[int, str] = {}

    # -- registering and looking up ----------------------------------------------------------------

    def register(
        self,
        subject: str,
        schema: Schema,
        *,
        references: Sequence[Reference] = (),
        metadata: Mapping[str, Any] | None = None,
        rule_set: Mapping[str, Any] | None = None,
        normalize: bool = False,
        id: int | None = None,
        version: int | None = None,
    ) -> SchemaVersion:
        """`schema` as a version of `subject`, from now on or before; it is compared by its identity.

        What is new has to follow the live versions as the compatibility level in force demands. The
        same schema has the same id under every subject of a context. `normalize` keeps the canonical
        text instead of the one given. A reference's version -1 is the latest. `id` and `version` are
        given in mode IMPORT, and only there. Raises InvalidSubject, InvalidSchema, InvalidVersion,
        IncompatibleSchema, OperationNotPermitted.
        """
        text = canonical(schema)
        number = self._run(lambda: schema_ids.register(subject, text))
        versions = self._run(lambda: schema_ids.versions_of(subject))
        return SchemaVersion(subject, versions.index(number) + 1, number, text)

    def lookup(
        self,
        subject: str,
        schema: Schema,
        *,
        references: Sequence[Reference] = (),
        normalize: bool = False,
        deleted: bool = False,
    ) -> SchemaVersion:
        """The version of `subject` that `schema` is.

        Raises SubjectNotFound, SchemaNotFound, InvalidSchema.
        """
        raise NotImplementedError("the registry is being built")

    def check(
        self,
        subject: str,
        schema: Schema,
        version: int | Literal["latest"] | None = None,
        *,
        references: Sequence[Reference] = (),
        normalize: bool = False,
    ) -> list[Finding]:
        """What keeps `schema` from being registered: empty, or warnings only, if nothing does.

        It is judged by the level in force: without `version` against the versions that `register` would
        take, else against that one alone; "latest" of a subject without versions is nothing. Raises
        VersionNotFound, InvalidVersion, InvalidSchema.
        """
        raise NotImplementedError("the registry is being built")

    def get(self, id: int, *, subject: str | None = None) -> StoredSchema:
        """The schema that an id names, in the context of `subject`. Raises SchemaNotFound.

        What an id names stays for ever, deleted or not, so it is cached.
        """
        text = self._texts.get(id)
        if text is None:
            text = self._run(lambda: schema_ids.text_of(id))
            if text is None:
                raise SchemaNotFound(f"no schema has the id {id} in this cluster")
            _remember(self._texts, id, text)
        return StoredSchema(id, text)

    def resolved(self, id: int, *, subject: str | None = None) -> str:
        """The schema that an id names as one canonical text, with all it refers to. Raises SchemaNotFound."""
        return self.get(id, subject=subject).schema

    def by_guid(self, guid: str) -> StoredSchema:
        """The schema with that UUID, by its id in the first context that has it. Raises SchemaNotFound."""
        raise NotImplementedError("the registry is being built")

    # -- versions and subjects ---------------------------------------------------------------------

    def version(
        self, subject: str, version: int | Literal["latest"], *, deleted: bool = False
    ) -> SchemaVersion:
        """One version of a subject, softly deleted ones only if `deleted`.

        Raises SubjectNotFound, VersionNotFound, InvalidVersion.
        """
        found = self._run(lambda: schema_ids.versions_of(subject))
        if not found:
            raise SubjectNotFound(f"no schema is registered under the subject {subject}")
        number = len(found) if version == "latest" else version
        if not 1 <= number <= len(found):
            raise VersionNotFound(f"subject {subject} has no version {version}")
        return SchemaVersion(subject, number, found[number - 1], self.get(found[number - 1]).schema)

    def versions(
        self, subject: str, *, deleted: bool = False, deleted_only: bool = False
    ) -> list[int]:
        """The numbers of a subject's versions, oldest first. Raises SubjectNotFound."""
        found = self._run(lambda: schema_ids.versions_of(subject))
        if not found:
            raise SubjectNotFound(f"no schema is registered under the subject {subject}")
        return list(range(1, len(found) + 1))

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """The subjects that have versions and begin with `prefix`, sorted.

        Those of the default context; with `:.name:` in front of the prefix those of that context, with
        `:*:` in front those of all.
        """
        found = self._run(schema_ids.subjects)
        return [subject for subject in found if subject.startswith(prefix)]

    def delete_version(
        self, subject: str, version: int | Literal["latest"], *, permanent: bool = False
    ) -> int:
        """Delete a version softly, or permanently after that → its number.

        Raises SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted,
        ReferenceExists, OperationNotPermitted, InvalidVersion.
        """
        raise NotImplementedError("the registry is being built")

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject softly, or permanently after that → their numbers.

        After a permanent deletion versions begin at 1 again; ids are never given again. Raises
        SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists,
        OperationNotPermitted.
        """
        raise NotImplementedError("the registry is being built")

    def referenced_by(self, subject: str, version: int | Literal["latest"]) -> list[int]:
        """The ids of the schemas with live versions that refer to a version, sorted.

        Raises SubjectNotFound, VersionNotFound, InvalidVersion.
        """
        raise NotImplementedError("the registry is being built")

    def versions_of(
        self, id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[tuple[str, int]]:
        """Subject and version wherever an id is used in the context of `subject`, sorted.

        Raises SchemaNotFound.
        """
        raise NotImplementedError("the registry is being built")

    def subjects_of(
        self, id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[str]:
        """The subjects that an id is a version of, as `versions_of`. Raises SchemaNotFound."""
        return sorted({name for name, _ in self.versions_of(id, subject=subject, deleted=deleted)})

    def contexts(self) -> list[str]:
        """The contexts in use, sorted: "." is the default one, others are ".name"."""
        raise NotImplementedError("the registry is being built")

    # -- levels and modes --------------------------------------------------------------------------

    def compatibility(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The level of a subject, of a context (`:.name:`), or the global one.

        Raises NoSubjectCompatibility if it has none of its own, unless `default_to_global`: then the
        one in force.
        """
        raise NotImplementedError("the registry is being built")

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Raises InvalidCompatibility, InvalidSubject, OperationNotPermitted."""
        raise NotImplementedError("the registry is being built")

    def delete_compatibility(self, subject: str | None = None) -> str:
        """Back to the level of the context, or BACKWARD globally → the level that was set.

        Raises NoSubjectCompatibility, OperationNotPermitted.
        """
        raise NotImplementedError("the registry is being built")

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """READWRITE, READONLY or IMPORT: of a subject, of a context (`:.name:`), or globally.

        Raises NoSubjectMode if it has none of its own, unless `default_to_global`: then the one in force.
        """
        raise NotImplementedError("the registry is being built")

    def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """IMPORT where schemas exist needs `force`.

        Raises InvalidMode, InvalidSubject, OperationNotPermitted.
        """
        raise NotImplementedError("the registry is being built")

    def delete_mode(self, subject: str | None = None) -> str:
        """Back to the mode of the context, or READWRITE globally → the mode that was set.

        Raises NoSubjectMode.
        """
        raise NotImplementedError("the registry is being built")

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
