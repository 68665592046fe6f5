"""Schemas, their versions and ids, kept in ZooKeeper: a library, no server to run."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Literal, Self, TypeVar
from uuid import UUID

from folkmoot.coordination.connector import connect
from folkmoot.coordination.schemas import deletion, lookups, settings
from folkmoot.coordination.schemas.names import (
    DEFAULT_CONTEXT,
    GLOBAL,
    SubjectName,
    context_of,
    parse,
    parse_subject,
)
from folkmoot.coordination.schemas.nodes import MAX_NUMBER, Content, Subject, Version
from folkmoot.coordination.schemas.registering import register, resolve_references
from folkmoot.coordination.schemas.transaction import Transaction
from folkmoot.coordination.schemas.versions import Reference, SchemaVersion, StoredSchema
from folkmoot.coordination.zookeeper.execute import AT_ONCE, execute, execute_all
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT
from folkmoot.coordination.zookeeper.operations import Recipe, SessionLost
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import (
    ClosedError,
    InvalidCompatibility,
    InvalidMode,
    InvalidVersion,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
    ZooKeeperUnreachable,
)
from folkmoot.schemas.avro.compatibility import LEVELS, Finding
from folkmoot.schemas.avro.identity import Schema
from folkmoot.schemas.registry.candidates import SchemaCandidate
from folkmoot.schemas.registry.contents import Contents

SESSION_TIMEOUT = 10.0
ATTEMPTS = 3
PATIENCE = 0.2
"""Seconds that a thread lets others of its process take new ids before it tries all the same."""
ALL_CONTEXTS = ":*:"

_S = TypeVar("_S")
_T = TypeVar("_T")


class SchemaRegistry:
    """Registers schemas and looks them up: one schema has one id, one id names one schema, for ever.

    Subjects have versions; a subject may lie in a context, `:.name:subject`, which has ids of its own.
    The schema of an id never changes, so it is cached; everything else is read from ZooKeeper each time.

    `zookeeper` is a connect string, something that opens a session, or a session. A session of its
    own is opened when the first question needs one, replaced when it was lost, and ended by `close`;
    a session that was given stays the giver's. All methods may be called from any thread. In a child that
    was forked when there was a session it is closed.

    Without a `timeout` (seconds) each call waits until ZooKeeper answers, or the session is over. With
    one it raises ZooKeeperUnreachable when it is not finished in time; what it was to change is changed
    or not.
    """

    def __init__(self, zookeeper: str | Connect | Session, *, timeout: float | None = None) -> None:
        self._shared_session: Session | None = None
        self._connect: Connect | None = None
        if isinstance(zookeeper, str):
            limit = CONNECT_TIMEOUT if timeout is None else timeout
            self._connect = partial(connect, zookeeper, connect_timeout=limit)
        elif callable(zookeeper):
            self._connect = zookeeper
        else:
            self._shared_session = zookeeper
        self._timeout = timeout
        self._lock = threading.Lock()
        self._own_session: Session | None = None
        self._process = None if self._shared_session is None else os.getpid()
        """Whose the session is: its threads are not there in a forked child, which would wait for ever."""
        self._closed = False
        self._contents = Contents()
        self._numbering_lock = threading.Lock()

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

        A new schema must follow the live versions by the compatibility level in force. The
        same schema has the same id under every subject of a context. `normalize` takes the text that
        Confluent's registry would make of it. A reference's version -1 is the latest. `id` and `version` are
        given in mode IMPORT, and only there. Raises InvalidSubject, InvalidSchema, InvalidVersion,
        IncompatibleSchema, OperationNotPermitted.
        """
        name = parse_subject(subject)
        candidate = SchemaCandidate(
            self._contents, name.context, schema, references, metadata, rule_set, normalize
        )

        def recipe() -> Recipe[tuple[Version, Content]]:
            found, new = yield from register(
                name, candidate, number=id, version=version, id_lock=self._hold_numbering_lock()
            )
            if new is not None:
                self._contents.cache(name.context, found.id, new)
            return found, (yield from self._contents.content(name.context, found.id))

        return _schema_version(name, *self._run(recipe()))

    def lookup(
        self,
        subject: str,
        schema: Schema,
        *,
        references: Sequence[Reference] = (),
        metadata: Mapping[str, Any] | None = None,
        rule_set: Mapping[str, Any] | None = None,
        normalize: bool = False,
        deleted: bool = False,
    ) -> SchemaVersion:
        """The version of `subject` that `schema` is, compared by its identity as `register` does.

        Raises SubjectNotFound, SchemaNotFound, InvalidSchema.
        """
        name = parse_subject(subject)
        candidate = SchemaCandidate(
            self._contents, name.context, schema, references, metadata, rule_set, normalize
        )

        def recipe() -> Recipe[tuple[Version, Content]]:
            stored_subject = yield from lookups.subject_of(name)
            stored_versions = list(stored_subject.versions if deleted else stored_subject.live())
            if not stored_versions:
                raise _no_subject(name)
            content = yield from self._evaluate(candidate, name.context)
            number = yield from lookups.id_of(name.context, content.guid)
            same = [each for each in stored_versions if each.id == number]
            if not same:
                raise SchemaNotFound(f"subject {name} has no such schema")
            found = max(same, key=lambda each: (not each.deleted, each.version))
            return found, (yield from self._contents.content(name.context, found.id))

        return _schema_version(name, *self._run(recipe()))

    def check(
        self,
        subject: str,
        schema: Schema,
        version: int | Literal["latest"] | None = None,
        *,
        references: Sequence[Reference] = (),
        normalize: bool = False,
    ) -> list[Finding]:
        """Return why `schema` cannot be registered; empty, or warnings only, if it can.

        It is judged by the level in force: without `version` against the versions that `register` would
        take, else against that one alone; "latest" of a subject without versions is nothing. Raises
        VersionNotFound, InvalidVersion, InvalidSchema.
        """
        name = parse_subject(subject)
        candidate = SchemaCandidate(
            self._contents, name.context, schema, references, normalize=normalize
        )

        def recipe() -> Recipe[list[Finding]]:
            stored_subject = yield from lookups.subject_of(name)
            yield from self._evaluate(candidate, name.context)
            level = yield from settings.in_force(
                Transaction(), "compatibility", name, stored_subject
            )
            previous = stored_subject.live()
            if version == "latest":
                previous = previous[-1:]
            elif version is not None:
                previous = [each for each in previous if each.version == _check_version(version)]
                if not previous:
                    raise VersionNotFound(f"subject {name} has no version {version}")
            return (yield from candidate.findings(level, [each.id for each in previous]))

        return self._run(recipe())

    def get(self, id: int, *, subject: str | None = None) -> StoredSchema:
        """The schema that an id names, in the context of `subject`. Raises SchemaNotFound.

        The schema of an id stays for ever, deleted or not, so it is cached.
        """
        context = context_of(subject)
        content = self._contents.cached(context, id)
        if content is None:
            content = self._run(self._contents.content(context, id))
        return _stored_schema(id, content)

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        """One canonical text of what an id names in the context of `subject`, with all it refers to.

        A GUID in place of the id names the same in all contexts. Raises SchemaNotFound, InvalidSubject.
        """
        context = context_of(subject)
        if isinstance(id, UUID):
            context, id = self._run(lookups.locate(id))
        text = self._contents.cached_resolved(context, id)
        return text if text is not None else self._run(self._contents.resolved(context, id))

    def by_guid(self, guid: str) -> StoredSchema:
        """The schema with that UUID, by its id in the first context that has it. Raises SchemaNotFound."""

        try:
            context, number = self._run(lookups.locate(UUID(guid)))
        except ValueError:
            raise SchemaNotFound(f"{guid!r:.80} is not a guid") from None
        return _stored_schema(number, self._run(self._contents.content(context, number)))

    # -- versions and subjects ---------------------------------------------------------------------

    def version(
        self, subject: str, version: int | Literal["latest"], *, deleted: bool = False
    ) -> SchemaVersion:
        """One version of a subject, softly deleted ones only if `deleted`.

        Raises SubjectNotFound, VersionNotFound, InvalidVersion.
        """
        name = parse_subject(subject)

        def recipe() -> Recipe[tuple[Version, Content]]:
            stored_subject = yield from lookups.subject_of(name)
            found = _select_version(name, stored_subject, version, deleted=deleted)
            return found, (yield from self._contents.content(name.context, found.id))

        return _schema_version(name, *self._run(recipe()))

    def versions(
        self, subject: str, *, deleted: bool = False, deleted_only: bool = False
    ) -> list[int]:
        """The numbers of a subject's versions, oldest first. Raises SubjectNotFound."""
        name = parse_subject(subject)
        stored_subject = self._run(lookups.subject_of(name))
        found = stored_subject.versions if deleted or deleted_only else stored_subject.live()
        if not found:
            raise _no_subject(name)
        return [each.version for each in found if each.deleted or not deleted_only]

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """The subjects that have versions and begin with `prefix`, sorted.

        Those of the default context; with `:.name:` in front of the prefix those of that context, with
        `:*:` in front those of all.
        """

        def recipe() -> Recipe[list[SubjectName]]:
            contexts, beginning = [DEFAULT_CONTEXT], prefix
            if prefix.startswith(ALL_CONTEXTS):
                contexts, beginning = (yield from lookups.contexts()), prefix[len(ALL_CONTEXTS) :]
            elif prefix.startswith(":."):
                name = parse(prefix)
                contexts, beginning = [name.context], name.name
            found = []
            for context in contexts:
                if not deleted_only:
                    found += yield from lookups.subjects(context, beginning)
                if deleted or deleted_only:
                    found += yield from lookups.subjects(context, beginning, deleted=True)
            return found

        return sorted({str(name) for name in self._run(recipe())})

    def schemas(
        self,
        prefix: str = "",
        *,
        deleted: bool = False,
        latest_only: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[SchemaVersion]:
        """The versions of `subjects(prefix)`, in their order; of each only the latest if `latest_only`.

        From `offset` on, at most `limit`.
        """
        end = None if limit is None else offset + limit
        found: list[tuple[SubjectName, Version]] = []
        for name, stored_subject in self._read(self.subjects(prefix, deleted=deleted)):
            if end is not None and len(found) >= end:
                break
            versions = list(stored_subject.versions if deleted else stored_subject.live())
            found += [(name, each) for each in (versions[-1:] if latest_only else versions)]
        return self._describe(found[offset:end])

    def schemas_of(self, subjects: Sequence[str], *, deleted: bool = False) -> list[SchemaVersion]:
        """The versions of these subjects, in their order. A missing one has none.

        Raises InvalidSubject.
        """
        return self._describe(
            [
                (name, each)
                for name, stored_subject in self._read(subjects)
                for each in (stored_subject.versions if deleted else stored_subject.live())
            ]
        )

    def _describe(self, found: Sequence[tuple[SubjectName, Version]]) -> list[SchemaVersion]:
        contents = self._read_all(
            lambda key: self._contents.content(key[0].context, key[1].id), found
        )
        return [
            _schema_version(*each, content) for each, content in zip(found, contents, strict=True)
        ]

    def listing(
        self, prefix: str = "", *, deleted: bool = False
    ) -> list[tuple[str, list[int], str]]:
        """Return version numbers and the level in force for each of `subjects(prefix)`."""
        found, context_levels = list[tuple[str, list[int], str]](), dict[str, str]()
        for name, stored_subject in self._read(self.subjects(prefix, deleted=deleted)):
            level = stored_subject.compatibility or context_levels.get(name.context)
            if level is None:
                of_context = str(SubjectName(name.context, ""))
                level = self.compatibility(of_context, default_to_global=True)
                context_levels[name.context] = level
            versions = stored_subject.versions if deleted else stored_subject.live()
            if versions:
                found.append((str(name), [each.version for each in versions], level))
        return found

    def compatibilities(self, subjects: Sequence[str]) -> dict[str, str]:
        """The levels of those of these subjects that have one of their own. Raises InvalidSubject."""
        levels = (
            (str(name), stored_subject.compatibility)
            for name, stored_subject in self._read(subjects)
        )
        return {name: level for name, level in levels if level is not None}

    def _read(self, subjects: Sequence[str]) -> Iterator[tuple[SubjectName, Subject]]:
        """Many at a time."""
        names = [parse(each) for each in subjects]
        for start in range(0, len(names), AT_ONCE):
            chunk = names[start : start + AT_ONCE]
            yield from zip(chunk, self._read_all(lookups.subject_of, chunk), strict=True)

    def delete_version(
        self, subject: str, version: int | Literal["latest"], *, permanent: bool = False
    ) -> int:
        """Delete a version softly, or permanently after that → its number.

        Raises SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted,
        ReferenceExists, OperationNotPermitted, InvalidVersion.
        """
        name = parse_subject(subject)
        number = version if version == "latest" else _check_version(version)
        return self._run(deletion.delete_version(name, number, permanent=permanent))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject softly, or permanently after that → their numbers.

        After a permanent deletion versions begin at 1 again; ids are never given again. Raises
        SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists,
        OperationNotPermitted.
        """
        name = parse_subject(subject)
        return self._run(deletion.delete_subject(name, permanent=permanent))

    def referenced_by(self, subject: str, version: int | Literal["latest"]) -> list[int]:
        """The ids of the schemas with live versions that refer to a version, sorted.

        Raises SubjectNotFound, VersionNotFound, InvalidVersion.
        """
        name = parse_subject(subject)

        def recipe() -> Recipe[list[int]]:
            stored_subject = yield from lookups.subject_of(name)
            found = _select_version(name, stored_subject, version, deleted=True)
            return (yield from lookups.referrers(name, found.version))

        return self._run(recipe())

    def versions_of(
        self, id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[tuple[str, int]]:
        """Subject and version wherever an id is used in the context of `subject`, sorted.

        Raises SchemaNotFound.
        """
        self.get(id, subject=subject)
        context = context_of(subject)
        names = self._run(lookups.users(context, id))
        found = self._read_all(lookups.subject_of, names)
        return sorted(
            (str(name), each.version)
            for name, stored_subject in zip(names, found, strict=True)
            for each in (stored_subject.versions if deleted else stored_subject.live())
            if each.id == id
        )

    def subjects_of(
        self, id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[str]:
        """The subjects that an id is a version of, as `versions_of`. Raises SchemaNotFound."""
        return sorted({name for name, _ in self.versions_of(id, subject=subject, deleted=deleted)})

    def contexts(self) -> list[str]:
        """The contexts in use, sorted: "." is the default one, others are ".name"."""
        return self._run(lookups.contexts())

    # -- levels and modes --------------------------------------------------------------------------

    def compatibility(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The level of a subject, of a context (`:.name:`), or the global one.

        Raises NoSubjectCompatibility if it has none of its own, unless `default_to_global`: then the
        one in force.
        """
        name = GLOBAL if subject is None else parse(subject)
        return self._run(settings.get("compatibility", name, default_to_global))

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Raises InvalidCompatibility, InvalidSubject, OperationNotPermitted."""
        name = GLOBAL if subject is None else parse(subject)
        if level not in LEVELS:
            raise InvalidCompatibility(f"{level!r:.80} is no level: use one of {', '.join(LEVELS)}")
        self._run(settings.put("compatibility", level, name))

    def delete_compatibility(self, subject: str | None = None) -> str:
        """Back to the level of the context, or BACKWARD globally → the level that was set.

        Raises NoSubjectCompatibility, OperationNotPermitted.
        """
        name = GLOBAL if subject is None else parse(subject)
        return self._run(settings.put("compatibility", None, name))

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """READWRITE, READONLY or IMPORT: of a subject, of a context (`:.name:`), or globally.

        Raises NoSubjectMode if it has none of its own, unless `default_to_global`: then the one in force.
        """
        name = GLOBAL if subject is None else parse(subject)
        return self._run(settings.get("mode", name, default_to_global))

    def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """IMPORT where schemas exist needs `force`.

        Raises InvalidMode, InvalidSubject, OperationNotPermitted.
        """
        name = GLOBAL if subject is None else parse(subject)
        if mode not in settings.MODES:
            raise InvalidMode(f"{mode!r:.80} is no mode: use one of {', '.join(settings.MODES)}")
        self._run(settings.put("mode", mode, name, force=force))

    def delete_mode(self, subject: str | None = None) -> str:
        """Back to the mode of the context, or READWRITE globally → the mode that was set.

        Raises NoSubjectMode.
        """
        name = GLOBAL if subject is None else parse(subject)
        return self._run(settings.put("mode", None, name))

    def close(self) -> None:
        """End the session that was opened here; what is cached can still be asked for."""
        if self._is_forked:
            return
        with self._lock:
            self._closed = True
            if self._own_session is not None:
                self._own_session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _hold_numbering_lock(self) -> Iterator[None]:
        """Threads that want new ids wait for each other, which is faster than trying again; not for long."""
        is_acquired = self._numbering_lock.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if is_acquired:
                self._numbering_lock.release()

    def _evaluate(self, candidate: SchemaCandidate, context: str) -> Recipe[Content]:
        """Evaluate a candidate without a change."""
        references = yield from resolve_references(Transaction(), context, candidate.references)
        return (yield from candidate.content(references))

    def _run(self, recipe: Recipe[_T]) -> _T:
        """Carry a recipe out; after a lost session it continues in another one."""
        with closing(recipe):
            return self._retry(lambda session, remaining: execute(session, recipe, remaining))

    def _read_all(self, recipe: Callable[[_S], Recipe[_T]], keys: Sequence[_S]) -> list[_T]:
        """Run a recipe that only reads for each key, side by side; again if the session is lost."""
        return self._retry(
            lambda session, remaining: execute_all(session, map(recipe, keys), timeout=remaining)
        )

    def _retry(self, attempt: Callable[[Session, float | None], _T]) -> _T:
        """Call `attempt` with a session and the seconds left, again in a new session if it was lost."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        for attempts_left in reversed(range(ATTEMPTS)):
            session = self._session()
            remaining = None if deadline is None else deadline - time.monotonic()
            try:
                return attempt(session, remaining)
            except (SessionLost, ZooKeeperUnreachable):
                is_over = session.state is SessionState.LOST and self._connect is not None
                if not is_over or not attempts_left:
                    raise
        raise AssertionError("unreachable")

    @property
    def _is_forked(self) -> bool:
        return self._process is not None and self._process != os.getpid()

    def _session(self) -> Session:
        if self._is_forked:
            raise ClosedError(
                "the schema registry was used before a fork: make one in each process"
            )
        if not self._lock.acquire(timeout=-1 if self._timeout is None else self._timeout):
            raise ZooKeeperUnreachable("ZooKeeper could not be connected to in time")
        try:
            if self._closed:
                raise ClosedError("the schema registry was closed: open another one")
            if self._shared_session is not None:
                return self._shared_session
            if self._connect is not None and _is_over(self._own_session):
                self._own_session = self._connect(SESSION_TIMEOUT)
                self._process = os.getpid()
            assert self._own_session is not None
            return self._own_session
        finally:
            self._lock.release()


def _is_over(store: Session | None) -> bool:
    return store is None or store.state is SessionState.LOST


def _select_version(
    name: SubjectName,
    stored_subject: Subject,
    version: int | Literal["latest"],
    *,
    deleted: bool = False,
) -> Version:
    """Raises SubjectNotFound, VersionNotFound, InvalidVersion."""
    candidates = list(stored_subject.versions if deleted else stored_subject.live())
    if version != "latest":
        _check_version(version)
    if not candidates:
        raise _no_subject(name)
    if version != "latest":
        candidates = [each for each in candidates if each.version == version]
    if not candidates:
        raise VersionNotFound(f"subject {name} has no version {version}")
    return candidates[-1]


def _check_version(version: int) -> int:
    if type(version) is not int or not 1 <= version <= MAX_NUMBER:
        raise InvalidVersion(
            f'{version!r:.80} is no version: use "latest", or a number from 1 to {MAX_NUMBER}'
        )
    return version


def _no_subject(name: SubjectName) -> SubjectNotFound:
    return SubjectNotFound(f"subject {name} has no schema")


def _stored_schema(number: int, content: Content) -> StoredSchema:
    references = content.plain_references()
    return StoredSchema(
        number, content.schema, references, content.metadata, content.rule_set, content.guid
    )


def _schema_version(name: SubjectName, version: Version, content: Content) -> SchemaVersion:
    return SchemaVersion(
        str(name),
        version.version,
        version.id,
        content.schema,
        content.plain_references(),
        content.metadata,
        content.rule_set,
        content.guid,
        version.deleted,
    )
