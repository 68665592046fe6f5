"""What requests need of the schema registry: the live ids of subjects, and schemas by id."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from functools import partial
from math import inf
from typing import Final, TypeVar
from uuid import UUID

from folkmoot.brokers.jobs.jobs import (
    Job,
    Lane,
    Now,
    SharedJob,
    Submit,
    log_failure,
    result_of,
)
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


class _Pause:
    """A job that keeps its lane busy for a while."""

    lane = Lane.UNKNOWN_IDS

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run

    def finish(self, outcome: object) -> None:
        pass


class _Subject:
    """The live ids of a subject as read last, and why the last read failed, if it did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: frozenset[int] = frozenset()
        self.error: Exception | None = None

    def take(self, found: frozenset[int] | Exception) -> None:
        """What a read has found."""
        if isinstance(found, Exception):
            self.error = found
        else:
            self.ids, self.error = found, None


class _SubjectReader:
    """Reads subjects, one after the other. Owner: the thread of the lane SUBJECTS."""

    def __init__(
        self,
        live_ids: Callable[[str, WatchCallback], Collection[int]],
        note_change: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._live_ids = live_ids
        self._note_change = note_change
        self._clock = clock
        self._reads: dict[str, tuple[float, frozenset[int] | Exception]] = {}

    def read(self, name: str, asked_at: float) -> frozenset[int] | Exception:
        """The live ids, by a read that has begun since `asked_at`; or why it failed."""
        begun, found = self._reads.pop(name, (-inf, frozenset()))
        if begun <= asked_at:
            begun = self._clock()
            watch = partial(self._note_change, name)
            found = result_of(lambda: frozenset(self._live_ids(name, watch)))
        self._reads[name] = begun, found
        if len(self._reads) > MAX_SUBJECTS:
            del self._reads[next(iter(self._reads))]
        return found

    def read_all(self, names: Iterable[str]) -> dict[str, frozenset[int] | Exception]:
        """Read these anew. A failure ends it."""
        found: dict[str, frozenset[int] | Exception] = {}
        for name in names:
            found[name] = self.read(name, self._clock())
            if isinstance(found[name], Exception):
                break
        return found


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
        self._schema = schema
        self._submit = submit
        self._clock = clock
        self._subjects: dict[str, _Subject] = {}
        self._changed: deque[str] = deque()
        """Names of subjects whose watch has fired. Any thread appends."""
        self._reader = _SubjectReader(live_ids, self._changed.append, clock)
        self._schemas: dict[Key, GetSchemaResponse] = {}
        self._look_ups: dict[Key, SharedJob] = {}
        self._characters = 0
        # A lane of its own, so that only requests with unknown ids wait for each other.
        self._miss = _Pause(partial(pause, MISS_PAUSE))

    def task(self, _now: Now) -> float:
        """Read the subjects again that have changed, or whose watch was lost with its connection."""
        changed = {self._changed.popleft() for _ in range(len(self._changed))}
        used = changed & self._subjects.keys()
        if used:
            read = partial(self._reader.read_all, used)
            self._submit(Lane.SUBJECTS, read, partial(self._have_read, used))
        return REFRESH_AFTER

    def refusals(self, subject: str, ids: Mapping[int, int]) -> Steps[dict[int, FolkmootError]]:
        """Find the batches that may not be appended, each with the reason.

        `ids` are the schema ids of the batches' headers, by the batches' numbers.
        """
        known = self._subject(subject)
        wanted = set(ids.values()) - {NO_SCHEMA, NO_VALUES}
        if not wanted <= known.ids:
            read = partial(self._reader.read, subject, self._clock())
            yield SharedJob(read, lambda _, found: known.take(found), Lane.SUBJECTS)
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
        job = self._look_ups.get(key)
        if job is None:
            job = SharedJob(partial(self._schema, key), lane=Lane.SCHEMAS)
            self._look_ups[key] = job
        yield job
        if self._look_ups.get(key) is job:
            del self._look_ups[key]
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
            known = self._subjects[name] = _Subject(name)
        return known

    def _have_read(
        self, wanted: Collection[str], found: dict[str, frozenset[int] | Exception] | Exception
    ) -> None:
        log_failure("schema ids", found)
        reads = {} if isinstance(found, Exception) else found
        for name, ids in reads.items():
            if name in self._subjects:
                self._subjects[name].take(ids)
        read = {name for name, ids in reads.items() if not isinstance(ids, Exception)}
        self._changed.extend(each for each in wanted if each not in read)

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
