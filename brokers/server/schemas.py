"""What requests need of the schema registry: the live ids of subjects, and schemas by id."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from math import inf
from typing import Any, Final, TypeVar
from uuid import UUID

from folkmoot.brokers.jobs.jobs import Job, Lane, Now, Submit, log_failure
from folkmoot.coordination.schemas import lookups
from folkmoot.coordination.schemas.nodes import Content
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.protocol.batch_header import NO_SCHEMA, NO_VALUES
from folkmoot.protocol.errors import (
    FolkmootError,
    ResponseTooLarge,
    SchemaNotFound,
    SchemaRefused,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import GetSchemaResponse
from folkmoot.protocol.wire import MAX_ENVELOPE_BYTES

_T = TypeVar("_T")
Key = tuple[str, int | UUID]
"""A context and an id of it, or a GUID."""
Steps = Generator[Job, None, _T]
"""Steps of a request, each of which waits for a job beside the event loop."""

REFRESH_AFTER: Final = 1.0
"""Seconds after which a subject that has changed is read again, and after which a failed read is repeated."""
MISS_PAUSE: Final = 0.05
"""Seconds after each look-up of an unknown id: at most 20 such look-ups run per second."""
MAX_SUBJECTS: Final = 10_000
MAX_CACHED_CHARACTERS: Final = 16 * 1024 * 1024


class _Job:
    """A `jobs.Job` whose result is its `outcome`."""

    def __init__(self, lane: Lane, run: Callable[[], Any]) -> None:
        self.lane = lane
        self.run = run
        self.outcome: Any = None

    def finish(self, outcome: Any) -> None:
        self.outcome = outcome


class _Subject:
    """The live ids of a subject as read last, and why the last read failed, if it did.

    Written by the thread of the queue "subjects"; the event loop only reads it.
    """

    def __init__(self, name: str, changed: deque["_Subject"]) -> None:
        self.name = name
        self.ids: frozenset[int] = frozenset()
        self.error: Exception | None = None
        self.read_at = -inf
        self._changed = changed

    def note_change(self) -> None:
        """The watch of the subject's node. Any thread."""
        self._changed.append(self)


class Schemas:
    """Decides whether batches may be appended to a topic with `value_schema`, and finds schemas by id.

    The node of each subject in use is watched. A batch of a known id never waits; a batch of an unknown
    id waits for one fresh read of the node. While ZooKeeper does not answer, known ids remain allowed.
    Owner: the event loop.
    """

    def __init__(
        self,
        live_ids: Callable[[str, WatchCallback], Collection[int]],
        schema: Callable[[Key], GetSchemaResponse],
        submit: Submit,
        pause: Callable[[float], object],
        clock: Callable[[], float],
    ) -> None:
        """`live_ids` and `schema` ask ZooKeeper, on any thread. Raise FolkmootError."""
        self._live_ids = live_ids
        self._schema = schema
        self._submit = submit
        self._clock = clock
        self._subjects: dict[str, _Subject] = {}
        self._changed: deque[_Subject] = deque()
        self._schemas: dict[Key, GetSchemaResponse] = {}
        self._characters = 0
        # A lane of its own, so that only requests with unknown ids wait for each other.
        self._miss = _Job(Lane.UNKNOWN_IDS, partial(pause, MISS_PAUSE))

    def task(self, _now: Now) -> float:
        """Read the subjects again that have changed, or whose watch was lost with its connection."""
        changed = set()
        while self._changed:
            changed.add(self._changed.popleft())
        used = [each for each in changed if self._subjects.get(each.name) is each]
        if used:
            read = partial(self._read_again, used)
            self._submit(Lane.SUBJECTS, read, partial(log_failure, "schema ids"))
        return REFRESH_AFTER

    def refusals(self, subject: str, ids: Mapping[int, int]) -> Steps[dict[int, FolkmootError]]:
        """Find the batches that may not be appended, each with the reason.

        `ids` are the schema ids of the batches' headers, by the batches' numbers.
        """
        known = self._subject(subject)
        wanted = set(ids.values()) - {NO_SCHEMA, NO_VALUES}
        if not wanted <= known.ids:
            yield _Job(Lane.SUBJECTS, partial(self._read, known, self._clock()))
            if known.error is None and not wanted <= known.ids:
                yield self._miss
        refusals = ((number, _refusal(known, ids[number])) for number in ids)
        return {number: refusal for number, refusal in refusals if refusal is not None}

    def resolve(self, key: Key) -> Steps[GetSchemaResponse]:
        """Find a schema. Raises SchemaNotFound, ZooKeeperUnreachable and other FolkmootErrors."""
        found = self._schemas.pop(key, None)
        if found is not None:
            self._schemas[key] = found  # the one used last comes last
            return found
        job = _Job(Lane.SCHEMAS, lambda: self._schemas.get(key) or self._schema(key))
        yield job
        if isinstance(job.outcome, SchemaNotFound):
            yield self._miss
        if isinstance(job.outcome, Exception):
            raise job.outcome
        resolved: GetSchemaResponse = job.outcome
        self._remember(key, resolved)
        return resolved

    def _subject(self, name: str) -> _Subject:
        known = self._subjects.get(name)
        if known is None:
            if len(self._subjects) >= MAX_SUBJECTS:
                del self._subjects[next(iter(self._subjects))]
            known = self._subjects[name] = _Subject(name, self._changed)
        return known

    def _read(self, subject: _Subject, asked_at: float) -> None:
        """Read a subject, unless a read has begun since `asked_at`: no answer is older than its question."""
        if subject.read_at > asked_at:
            return
        subject.read_at = self._clock()
        try:
            subject.ids = frozenset(self._live_ids(subject.name, subject.note_change))
            subject.error = None
        except Exception as error:
            subject.error = error

    def _read_again(self, subjects: Collection[_Subject]) -> None:
        """A failure ends it: the rest is read by a later job."""
        waiting = deque(subjects)
        while waiting:
            self._read(waiting[0], self._clock())
            if waiting[0].error is not None:
                break
            waiting.popleft()
        self._changed.extend(waiting)

    def _remember(self, key: Key, schema: GetSchemaResponse) -> None:
        if key not in self._schemas:
            self._schemas[key] = schema
            self._characters += _characters(schema)
        while self._characters > MAX_CACHED_CHARACTERS:
            self._characters -= _characters(self._schemas.pop(next(iter(self._schemas))))


def _refusal(subject: _Subject, schema_id: int) -> FolkmootError | None:
    if schema_id == NO_VALUES or schema_id in subject.ids:
        return None
    if schema_id == NO_SCHEMA:
        return SchemaRefused(
            f"the batch says schema id 0, none or several, where subject {subject.name} is asked for: "
            "send values by a serialiser that writes ids of it"
        )
    if subject.error is not None:
        return ZooKeeperUnreachable(
            f"whether schema id {schema_id} is of {subject.name} is unknown: {subject.error}"
        )
    return SchemaRefused(
        f"schema id {schema_id} is no live version of subject {subject.name}: register it there first"
    )


def described(context: str, number: int | UUID) -> Recipe[GetSchemaResponse]:
    """A schema and those that it refers to. Raises SchemaNotFound, ResponseTooLarge, InvalidSchema (too
    many), Malformed."""
    if isinstance(number, UUID):
        context, number = yield from lookups.place_of(number)
    found = yield from lookups.content_of(context, number)
    if found is None:
        raise lookups.unknown_id(context, number)
    read: dict[tuple[str, int], Content] = {}
    characters = len(found.schema)

    def content(context: str, number: int) -> Recipe[Content]:
        nonlocal characters
        if (context, number) not in read:
            other = yield from lookups.content_of(context, number)
            if other is None:
                raise Malformed(f"schema {number} of context {context} is referred to and missing")
            read[context, number] = other
            characters += len(other.schema)
            if characters > MAX_ENVELOPE_BYTES:
                raise ResponseTooLarge("the schema and those that it refers to fit into no answer")
        return read[context, number]

    texts = yield from lookups.referred(context, found.references, content)
    return GetSchemaResponse(found.schema, texts)


def _characters(schema: GetSchemaResponse) -> int:
    return len(schema.schema) + sum(map(len, schema.references))
