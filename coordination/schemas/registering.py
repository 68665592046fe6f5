"""Registering: a schema gets one id for ever, and a subject its next version, in one transaction.

The transaction increases the context's counter, creates the nodes of the id and of the guid, and writes the
subject's. It checks everything that the decision depends on: the subject's versions, the level and mode in
force, the versions referred to. No id comes from a client's memory, so none is given twice.

The nodes of ids and guids are never deleted nor written again, and may be cached for ever. The nodes of
subjects are never deleted either, so that their ZooKeeper versions reveal every change.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from folkmoot.coordination import paths
from folkmoot.coordination.schemas import nodes, settings
from folkmoot.coordination.schemas.names import SubjectName, parse_subject
from folkmoot.coordination.schemas.nodes import Content, StoredReference, Subject, Version
from folkmoot.coordination.schemas.transaction import Transaction, transact
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import (
    Create,
    Delete,
    Recipe,
    TooLarge,
    Write,
)
from folkmoot.protocol.errors import InvalidSchema, InvalidVersion, OperationNotPermitted


class Candidate(Protocol):
    """A schema that is about to be registered."""

    @property
    def references(self) -> Sequence[Reference]: ...

    def content(self, references: tuple[StoredReference, ...]) -> Recipe[Content]:
        """Return what to store, with these references. Raises InvalidSchema."""

    def judge(self, level: str, previous: Sequence[int]) -> Recipe[None]:
        """Raises IncompatibleSchema if it may not follow these ids, oldest first."""

    def warn(self, subject: SubjectName, level: str, deleted: Sequence[int]) -> Recipe[None]:
        """Log why it could not follow the ids of these deleted versions, if so."""


def register(
    name: SubjectName,
    candidate: Candidate,
    *,
    number: int | None = None,
    version: int | None = None,
    id_lock: AbstractContextManager[object] | None = None,
) -> Recipe[tuple[Version, Content | None]]:
    """Return `candidate` as a version of a subject, registered now or before, and its content if it is new.

    `number` is the id to import. `id_lock` is held while a new id is taken, so that threads that share it do
    not refuse each other. Raises InvalidSchema, InvalidVersion, InvalidSubject, IncompatibleSchema,
    OperationNotPermitted, Malformed.
    """
    if number is not None and not 1 <= number <= nodes.MAX_NUMBER:
        raise InvalidSchema(f"{number} cannot be the id of a schema: use 1 to {nodes.MAX_NUMBER}")
    if version is not None and not 1 <= version <= nodes.MAX_NUMBER:
        raise InvalidVersion(f"{version} cannot be a version: use 1 to {nodes.MAX_NUMBER}")
    yield from settings.create_parents(name.context)
    registration = _Registration(name, candidate, number, version, id_lock)
    try:
        with registration.entered:
            return (yield from transact(registration.decide))
    except TooLarge as error:
        raise InvalidSchema(f"the schema is too large for subject {name}: {error}") from None


@dataclass
class _Registration:
    name: SubjectName
    candidate: Candidate
    number: int | None
    version: int | None
    id_lock: AbstractContextManager[object] | None
    entered: ExitStack = field(default_factory=ExitStack)

    def decide(self, transaction: Transaction) -> Recipe[tuple[Version, Content | None]]:
        name, context = self.name, self.name.context
        path = paths.subject(context, name.name)
        subject = (yield from transaction.read(nodes.subject_decoder, path)) or Subject()
        references = yield from resolve_references(transaction, context, self.candidate.references)
        content = yield from self.candidate.content(references)
        guid_path = paths.schema_guid(context, content.guid)
        known = yield from transaction.read(nodes.number_decoder, guid_path)
        found = self._find_registered(subject, known)
        if found is not None:
            return found, None
        yield from self._check_allowed(transaction, subject)
        number = yield from self._choose_id(transaction, known, content)
        version = self._next_version(subject, number, bool(references))
        after = subject.with_versions([*subject.versions, version])
        transaction.put(path, nodes.encode(after))
        transaction.writes += listing_writes(name, subject, after)
        if number not in {each.id for each in subject.versions}:
            transaction.writes.append(Create(paths.schema_use(context, number, name.name)))
        yield from self._refer(transaction, references, version)
        return version, content if known is None else None

    def _find_registered(self, subject: Subject, known: nodes.Number | None) -> Version | None:
        """Return the live version if it is registered already, as requested."""
        if known is None or self.number not in (None, known.id):
            return None
        same = [each for each in subject.live() if each.id == known.id]
        fitting = [each for each in same if self.version in (None, each.version)]
        return fitting[-1] if fitting else None

    def _check_allowed(self, transaction: Transaction, subject: Subject) -> Recipe[None]:
        """Raises OperationNotPermitted, IncompatibleSchema, InvalidSchema."""
        mode = yield from settings.check_writable(transaction, self.name, subject)
        if mode == "IMPORT":
            if self.number is None:
                raise OperationNotPermitted(
                    f"subject {self.name} is in mode IMPORT: give the schema's id"
                )
            return
        if self.number is not None or self.version is not None:
            raise OperationNotPermitted(
                f"subject {self.name} is not in mode IMPORT: the registry chooses ids and versions"
            )
        level = yield from settings.in_force(transaction, "compatibility", self.name, subject)
        live = subject.live()
        previous = [each.id for each in live or subject.versions]
        if not level.endswith("_TRANSITIVE"):
            previous = previous[-1:]
        if level == "NONE" or not previous:
            return
        if live:
            yield from self.candidate.judge(level, previous)
        else:  # as in Confluent's registry, any schema is accepted then
            yield from self.candidate.warn(self.name, level, previous)

    def _choose_id(
        self, transaction: Transaction, known: nodes.Number | None, content: Content
    ) -> Recipe[int]:
        """Return the id of the content in this context: its own, the one to import, or the next."""
        context = self.name.context
        if known is not None:
            if self.number not in (None, known.id):
                raise OperationNotPermitted(
                    f"the schema has the id {known.id} already: it cannot be imported as {self.number}"
                )
            return known.id
        data = nodes.encode_content(content)
        if self.id_lock is not None:
            self.entered.enter_context(self.id_lock)
            self.id_lock = None
        counter_path = paths.schema_counter(context)
        counter = yield from transaction.read(nodes.counter_decoder, counter_path)
        seen, _ = yield from recipes.read(nodes.counter_decoder, paths.SEEN_SCHEMA_ID)
        # Batches contain ids, so none may be used again, even if the counter was lost or set back.
        last = max((each.last for each in (counter, seen) if each is not None), default=0)
        number = self.number or last + 1
        path = paths.schema_id(context, number)
        if self.number is not None:
            if (yield from transaction.read(nodes.content_decoder, path)) is not None:
                raise OperationNotPermitted(f"the id {number} names another schema already")
        elif number > nodes.MAX_NUMBER:
            raise OperationNotPermitted(f"context {context} has no ids left above {last}")
        if number > (counter.last if counter else 0):
            transaction.put(counter_path, nodes.encode(nodes.Counter(number)))
        transaction.put(
            paths.schema_guid(context, content.guid), nodes.encode(nodes.Number(number))
        )
        if self.number is None:
            transaction.writes.append(Create(path, data))
        else:
            transaction.put(path, data)
        return number

    def _next_version(self, subject: Subject, number: int, refers: bool) -> Version:
        numbers = {each.version for each in subject.versions}
        version = self.version or max(numbers, default=0) + 1
        if version in numbers:
            raise OperationNotPermitted(
                f"subject {self.name} has a version {version} already: delete it permanently first"
            )
        if len(numbers) >= nodes.MAX_VERSIONS or version > nodes.MAX_NUMBER:
            raise OperationNotPermitted(
                f"subject {self.name} has {len(numbers)} versions up to {max(numbers)}: use another subject"
            )
        return Version(version, number, False, refers)

    def _refer(
        self, transaction: Transaction, references: Sequence[StoredReference], version: Version
    ) -> Recipe[None]:
        """Add the references to the subjects referred to.

        Their nodes are written unchanged, because deletions write them too: of both one fails.
        """
        subjects = {each.resolve(self.name.context) for each in references} - {self.name}
        for subject_name in sorted(subjects, key=str):
            path = paths.subject(subject_name.context, subject_name.name)
            subject = yield from transaction.read(nodes.subject_decoder, path)
            transaction.put(path, nodes.encode(subject or Subject()))
        found = reference_paths(self.name, version, references)
        transaction.writes += map(Create, found)


def listing_writes(name: SubjectName, before: Subject, after: Subject) -> list[Write]:
    """Return the writes that update the lists of subjects."""
    was, now = _listing(name, before), _listing(name, after)
    if was == now:
        return []
    return [*map(Delete, was), *map(Create, now)]


def _listing(name: SubjectName, subject: Subject) -> list[str]:
    if not subject.versions:
        return []
    listing = paths.LIVE_SUBJECTS if subject.live() else paths.DELETED_SUBJECTS
    return [paths.listed_subject(name.context, listing, name.name)]


def reference_paths(
    name: SubjectName, version: Version, references: Sequence[StoredReference]
) -> list[str]:
    """Return the nodes of a version's references."""
    found = set()
    for each in references:
        to = each.resolve(name.context)
        who = str(name), version.version, version.id
        found.add(paths.schema_reference(to.context, to.name, each.version, *who))
    return sorted(found)


def resolve_references(
    transaction: Transaction, context: str, references: Sequence[Reference]
) -> Recipe[tuple[StoredReference, ...]]:
    """Return what the references of a schema mean now. Raises InvalidSchema, InvalidSubject."""
    found = []
    for reference in references:
        name = parse_subject(reference.subject, context)
        path = paths.subject(name.context, name.name)
        subject = (yield from transaction.read(nodes.subject_decoder, path)) or Subject()
        live = {each.version: each.id for each in subject.live()}
        version = reference.version if reference.version != -1 else max(live, default=0)
        if version not in live:
            raise InvalidSchema(
                f"the schema refers to {reference.name} in version {reference.version} of subject "
                f"{name}, which does not exist"
            )
        found.append(StoredReference(reference.name, reference.subject, version, live[version]))
    return tuple(found)


def note_seen(number: int) -> Recipe[None]:
    """Record that brokers have seen a schema id in a batch: no new schema may get it or a lower one."""

    def noted(before: nodes.Counter) -> nodes.Counter:
        return before if before.last >= number else nodes.Counter(number)

    if number > 0:
        yield from recipes.update(
            nodes.counter_decoder, paths.SEEN_SCHEMA_ID, noted, nodes.Counter(0)
        )
