"""The schema registry as requests need it: the live ids of subjects, and schemas by id."""

from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from folkmoot.brokers.jobs.jobs import Job, Lane, Now, SharedJob, Submit, log_failure, result_of
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
JobGenerator = Generator[Job, None, _T]
"""Yields jobs that run beside the event loop, and returns a result."""

REFRESH_AFTER: Final = 1.0
"""Seconds after which a subject that has changed is read again, and a failed read is repeated."""
MISS_PAUSE: Final = 0.05
"""Seconds after each look-up of an unknown id: at most 20 such look-ups run per second."""
MAX_SUBJECTS: Final = 10_000
MAX_CACHED_CHARACTERS: Final = 16 * 1024 * 1024


class _Subject:
    """The live ids of a subject as read last, and why the last read failed, if it did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: frozenset[int] = frozenset()
        self.error: Exception | None = None

    def update(self, _job: Any, outcome: frozenset[int] | Exception) -> None:
        """Take in the outcome of a read."""
        if isinstance(outcome, Exception):
            self.error = outcome
        else:
            self.ids, self.error = outcome, None


class Schemas:
    """Decides whether batches may be appended to a topic with `value_schema`, and finds schemas by id.

    The node of each subject in use is watched. A batch of a known id never waits. A batch of an unknown
    id waits for a read of the node that begins after the batch came. While ZooKeeper does not answer,
    known ids remain allowed. Owner: the event loop.
    """

    def __init__(
        self,
        live_ids: Callable[[str, WatchCallback], Collection[int]],
        schema: Callable[[Key], GetSchemaResponse],
        submit: Submit,
        pause: Callable[[float], object],
    ) -> None:
        """`live_ids` and `schema` ask ZooKeeper, on any thread. Raise FolkmootError."""
        self._live_ids = live_ids
        self._schema = schema
        self._submit = submit
        # Pauses have a lane of their own, so that only requests with unknown ids wait for each other.
        self._miss = partial(SharedJob, partial(pause, MISS_PAUSE), lane=Lane.UNKNOWN_IDS)
        self._subjects: dict[str, _Subject] = {}
        self._reads: dict[str, SharedJob] = {}
        """Reads of subjects that have not begun."""
        self._changed: set[str] = set()
        """Names of subjects whose watch has fired. Any thread adds."""
        self._is_refreshing = False
        self._schemas: dict[Key, GetSchemaResponse] = {}
        self._look_ups: dict[Key, SharedJob] = {}
        self._characters = 0

    def task(self, _now: Now) -> float:
        """Read the subjects again that have changed, or whose watch was lost with its connection."""
        if not self._is_refreshing:
            self._refresh_next()
        return REFRESH_AFTER

    def _refresh_next(self) -> None:
        self._is_refreshing = False
        while self._changed and not self._is_refreshing:
            known = self._subjects.get(self._changed.pop())
            if known is not None:
                self._is_refreshing = True
                read = partial(self._read, known.name)
                self._submit(Lane.SUBJECTS, read, partial(self._finish_refresh, known))

    def _finish_refresh(self, subject: _Subject, outcome: frozenset[int] | Exception) -> None:
        log_failure("schema ids", outcome)
        subject.update(None, outcome)
        if isinstance(outcome, Exception):  # other reads are likely to fail too: wait for `task`
            self._changed.add(subject.name)
            self._is_refreshing = False
        else:
            self._refresh_next()

    def refusals(
        self, subject: str, ids: Mapping[int, int]
    ) -> JobGenerator[dict[int, FolkmootError]]:
        """Find the batches that may not be appended, each with the reason.

        `ids` are the schema ids of the batches' headers, by the batches' numbers.
        """
        known = self._subjects.get(subject)
        if known is None:
            if len(self._subjects) >= MAX_SUBJECTS:
                del self._subjects[next(iter(self._subjects))]
            known = self._subjects[subject] = _Subject(subject)
        wanted = set(ids.values()) - {NO_SCHEMA, NO_VALUES}
        if not wanted <= known.ids:
            job = self._reads.get(subject)
            if job is None:
                # A failure is shared, too: while ZooKeeper does not answer, each read takes its timeout.
                read = partial(result_of, partial(self._read, subject))
                job = SharedJob(read, known.update, Lane.SUBJECTS)
                self._reads[subject] = job
            yield job
            if known.error is None and not wanted <= known.ids:
                yield self._miss()
        refusals = ((number, _refusal(known, ids[number])) for number in ids)
        return {number: refusal for number, refusal in refusals if refusal is not None}

    def _read(self, subject: str) -> frozenset[int]:
        """Read and watch a subject's node, on any thread. Later requests need a later read."""
        self._reads.pop(subject, None)
        return frozenset(self._live_ids(subject, partial(self._changed.add, subject)))

    def resolve(self, key: Key) -> JobGenerator[GetSchemaResponse]:
        """Find a schema. Raises SchemaNotFound, ZooKeeperUnreachable and other FolkmootErrors."""
        found = self._schemas.pop(key, None)
        if found is not None:
            self._schemas[key] = found  # the one used last comes last
            return found
        job = self._look_ups.get(key)
        if job is None:
            job = self._look_ups[key] = SharedJob(partial(self._schema, key), lane=Lane.SCHEMAS)
        yield job
        if self._look_ups.get(key) is job:
            del self._look_ups[key]
        if isinstance(job.outcome, SchemaNotFound):
            yield self._miss()
        if isinstance(job.outcome, Exception):
            raise job.outcome
        resolved: GetSchemaResponse = job.outcome
        if key not in self._schemas:
            self._schemas[key] = resolved
            self._characters += _characters(resolved)
        while self._characters > MAX_CACHED_CHARACTERS:
            self._characters -= _characters(self._schemas.pop(next(iter(self._schemas))))
        return resolved


def _refusal(subject: _Subject, schema_id: int) -> FolkmootError | None:
    if schema_id == NO_VALUES or schema_id in subject.ids:
        return None
    if schema_id == NO_SCHEMA:
        return SchemaRefused(
            f"the batch has schema id 0, none or several; its topic takes values of subject {subject.name}: "
            "send values by a serialiser that writes ids of it"
        )
    if subject.error is not None:
        return ZooKeeperUnreachable(
            f"whether schema id {schema_id} belongs to {subject.name} is unknown: {subject.error}"
        )
    return SchemaRefused(
        f"schema id {schema_id} is no live version of subject {subject.name}: register it there first"
    )


def describe_schema(context: str, number: int | UUID) -> Recipe[GetSchemaResponse]:
    """A schema and those that it refers to. Raises SchemaNotFound, ResponseTooLarge, InvalidSchema (too
    many), Malformed."""
    if isinstance(number, UUID):
        context, number = yield from lookups.locate(number)
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

    texts = yield from lookups.collect_referred(context, found.references, content)
    return GetSchemaResponse(found.schema, texts)


def _characters(schema: GetSchemaResponse) -> int:
    return len(schema.schema) + sum(map(len, schema.references))
