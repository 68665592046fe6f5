"""What the registry in ZooKeeper says, as far as requests need it: live ids of subjects, schemas by id."""

from collections.abc import Callable, Collection, Hashable, Iterable
from math import inf
from typing import Any, Final, TypeVar
from uuid import UUID

from folkmoot.brokers.storage.jobs import Submit, result_of
from folkmoot.coordination.schemas import lookups
from folkmoot.coordination.schemas.nodes import Content
from folkmoot.coordination.zookeeper.operations import Recipe
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
_Asked = TypeVar("_Asked")

LIVE_FOR: Final = 30.0
"""So many seconds after it was read a subject is read again before it is believed."""
REFRESH_AFTER: Final = 20.0
"""So many seconds after it was read it is read again while batches of known ids go on."""
TRY_AGAIN_AFTER: Final = 1.0
"""So long ZooKeeper is left alone when it has not answered."""
PAUSE_IN_VAIN: Final = 0.05
"""Behind a look in vain: of subjects, and of peers that have asked for unknown ids before."""
MAX_DOUBTED: Final = 10_000
MAX_SUBJECTS: Final = 10_000
MAX_CACHED_CHARACTERS: Final = 16 * 1024 * 1024


class Look:
    """A question to ZooKeeper, a `storage.jobs.Job` for a queue of its kind.

    Who asks while another one's look has not begun shares it; later it is asked anew, so that no answer
    is older than its question.
    """

    def __init__(
        self, queue: str, read: Callable[[], Any], answered: Callable[["Look"], None]
    ) -> None:
        self.queue = queue
        self._read = read
        self._answered = answered
        self.has_begun = False
        self.has_ended = False
        self.outcome: Any = None

    def run(self) -> Any:
        if not self.has_begun:
            self.has_begun = True
            self.outcome = result_of(self._read)
        return self.outcome

    def finish(self, _outcome: Any) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._answered(self)


class _Subject:
    """What was read of a subject: its live ids, why it could not be read again since, and when it is to
    be."""

    __slots__ = ("again_at", "believed_until", "ids", "trouble")

    def __init__(self) -> None:
        self.ids: frozenset[int] = frozenset()
        self.believed_until = self.again_at = -inf
        self.trouble: FolkmootError | None = None


class Schemas:
    """Whether batches may go to a topic of a subject, and schemas by id.

    An id that is not known is looked up before its batch is refused, by a job beside the event loop. A
    version that was deleted is noticed LIVE_FOR seconds later at most; while ZooKeeper does not answer
    what is known holds on, and batches of other ids may come again. There is no list of ids that were
    not found, since each may be registered at any moment: looks are one at a time, and pause behind
    each that was in vain. Owner: the event loop.
    """

    def __init__(
        self,
        live_ids: Callable[[str], Collection[int]],
        schema: Callable[[Key], GetSchemaResponse],
        submit: Submit,
        pause: Callable[[float], object],
        clock: Callable[[], float],
    ) -> None:
        """`live_ids` and `schema` ask ZooKeeper, on any thread. Raise FolkmootError."""
        self._live_ids = live_ids
        self._schema = schema
        self._submit = submit
        self._pause = pause
        self._clock = clock
        self._looks: dict[Hashable, Look] = {}
        self._subjects: dict[str, _Subject] = {}
        self._schemas: dict[Key, GetSchemaResponse] = {}
        self._characters = 0
        self._doubted: set[bytes] = set()
        # Of the looks' threads: who waits behind a question that was not answered is not to wait as long.
        self._silence: FolkmootError | None = None
        self._silent_until = -inf

    def look_for(self, subject: str, ids: Iterable[int]) -> Look | None:
        """What has to be done before `refusal` can judge these ids; None: nothing."""
        known = self._subjects.setdefault(subject, _Subject())
        wanted = {each for each in ids if each not in (NO_SCHEMA, NO_VALUES)}
        if not wanted:
            return None
        now = self._clock()
        all_known = wanted <= known.ids
        if known.trouble is None and (not all_known or now >= known.believed_until):
            return self._look_at(subject, wanted)
        if now < known.again_at:
            return None
        look = self._look_at(subject, wanted)
        if not all_known:
            return look
        known.again_at = now + TRY_AGAIN_AFTER
        self._submit(look.queue, look.run, look.finish)
        return None

    def _look_at(self, subject: str, wanted: Collection[int]) -> Look:
        def read() -> frozenset[int]:
            found = frozenset(self._asked(self._live_ids, subject))
            if not found.issuperset(wanted):
                self._pause(PAUSE_IN_VAIN)
            return found

        return self._look("subjects", subject, read, self._subject_answered)

    def _asked(self, ask: Callable[[_Asked], _T], what: _Asked) -> _T:
        """The answer, on a look's thread. Raises the error of a moment ago if there was none."""
        silence = self._silence
        if silence is not None and self._clock() < self._silent_until:
            raise ZooKeeperUnreachable(str(silence))
        try:
            found = ask(what)
        except ZooKeeperUnreachable as error:
            self._silence, self._silent_until = error, self._clock() + TRY_AGAIN_AFTER
            raise
        self._silence = None
        return found

    def _subject_answered(self, subject: Hashable, outcome: Any) -> None:
        assert isinstance(subject, str)
        known, now = self._subjects.setdefault(subject, _Subject()), self._clock()
        if isinstance(outcome, Exception):
            known.trouble, known.again_at = _trouble(outcome), now + TRY_AGAIN_AFTER
        else:
            known.trouble, known.ids = None, outcome
            known.believed_until, known.again_at = now + LIVE_FOR, now + REFRESH_AFTER
        while len(self._subjects) > MAX_SUBJECTS:
            del self._subjects[next(iter(self._subjects))]

    def refusal(self, subject: str, number: int) -> FolkmootError | None:
        """Why a batch whose header has this id may not be appended, None if it may."""
        if number == NO_VALUES:
            return None
        if number == NO_SCHEMA:
            return SchemaRefused(
                f"the batch says schema id 0, none or several, where subject {subject} is asked for: "
                "send values by a serialiser that writes ids of it"
            )
        known = self._subjects.get(subject)
        if known is not None and number in known.ids:
            return None
        if known is None or known.trouble is not None:
            why = "" if known is None else f": {known.trouble}"
            return ZooKeeperUnreachable(
                f"whether schema id {number} is of {subject} is unknown{why}"
            )
        return SchemaRefused(
            f"schema id {number} is no live version of subject {subject}: register it there first"
        )

    def schema(self, key: Key) -> GetSchemaResponse | None:
        """A schema that is known here."""
        found = self._schemas.pop(key, None)
        if found is not None:
            self._schemas[key] = found  # the one used last comes last
        return found

    def look_up(self, key: Key, peer: bytes = b"") -> Look:
        """The way to one that is not; the look's outcome is it, or the error.

        A peer that has asked in vain waits in a queue of its kind, with pauses, until it finds one.
        """
        is_doubted = peer in self._doubted

        def read() -> GetSchemaResponse:
            try:
                return self._asked(self._schema, key)
            except SchemaNotFound:
                if is_doubted:
                    self._pause(PAUSE_IN_VAIN)
                raise

        def answered(_what: Hashable, outcome: Any) -> None:
            if isinstance(outcome, GetSchemaResponse) and key not in self._schemas:
                self._remember(key, outcome)

        queue = "doubted schemas" if is_doubted else "schemas"
        return self._look(queue, (queue, key), read, answered)

    def judge(self, peer: bytes, look: Look) -> None:
        """Note whether the peer of a look that has ended asks in vain."""
        if isinstance(look.outcome, SchemaNotFound):
            if len(self._doubted) >= MAX_DOUBTED:
                self._doubted.clear()
            self._doubted.add(peer)
        elif not isinstance(look.outcome, Exception):
            self._doubted.discard(peer)

    def _remember(self, key: Key, schema: GetSchemaResponse) -> None:
        self._schemas[key] = schema
        self._characters += _characters(schema)
        while self._characters > MAX_CACHED_CHARACTERS:
            self._characters -= _characters(self._schemas.pop(next(iter(self._schemas))))

    def _look(
        self,
        queue: str,
        what: Hashable,
        read: Callable[[], Any],
        answered: Callable[[Hashable, Any], None],
    ) -> Look:
        look = self._looks.get(what)
        if look is None or look.has_begun:

            def done(look: Look) -> None:
                if self._looks.get(what) is look:
                    del self._looks[what]
                answered(what, look.outcome)

            look = self._looks[what] = Look(queue, read, done)
        return look


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


def _trouble(error: Exception) -> FolkmootError:
    return error if isinstance(error, FolkmootError) else ZooKeeperUnreachable(repr(error))


def _characters(schema: GetSchemaResponse) -> int:
    return len(schema.schema) + sum(map(len, schema.references))
