"""The table of requests: the handler, the right and the quota of each api.

The one place to look up what a request may do. A new api is a row here and in `messages.APIS`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.server.purgatory import Request
from folkmoot.brokers.server.request_handlers import JobGenerator, Outcome, RequestHandlers
from folkmoot.protocol.errors import InvalidRequest
from folkmoot.protocol.messages import API_OF, Api


class Operation(Enum):
    """The operation of a request, in Kafka's terms."""

    NONE = auto()
    READ = auto()
    WRITE = auto()
    DELETE = auto()
    DESCRIBE = auto()
    CLUSTER_ACTION = auto()


class Resource(Enum):
    """The resource of a request."""

    NONE = auto()
    TOPIC = auto()
    SUBJECT = auto()
    CLUSTER = auto()


class QuotaClass(Enum):
    """The budget that a request takes from."""

    NONE = auto()
    """Never delayed: pings, and traffic between brokers."""
    PRODUCE = auto()
    FETCH = auto()
    REQUEST = auto()


_Handler = Callable[[RequestHandlers, Request, Sequence[memoryview], Now], Outcome | JobGenerator]


class Row(NamedTuple):
    """How the broker treats an api's requests."""

    handler: _Handler
    operation: Operation
    resource: Resource
    quota: QuotaClass
    needs_room: bool = False
    """It may wait in the purgatory: Overloaded refuses it at once if its peer has too many requests there.
    A fetch asks for room when it must wait."""


# READ, WRITE, DELETE of a topic imply DESCRIBE of it, as in Kafka.
_DESCRIBE_TOPIC: Final = Operation.DESCRIBE, Resource.TOPIC, QuotaClass.REQUEST
_BETWEEN_BROKERS: Final = Operation.CLUSTER_ACTION, Resource.CLUSTER, QuotaClass.NONE

TABLE: Final[Mapping[Api, Row]] = {
    Api.HELLO: Row(
        lambda to, request, frames, now: to.hello(),
        *(Operation.NONE, Resource.NONE, QuotaClass.NONE),
    ),
    Api.METADATA: Row(
        lambda to, request, frames, now: to.describe_topics(request.body), *_DESCRIBE_TOPIC
    ),
    Api.PRODUCE: Row(
        lambda to, request, frames, now: to.produce(request, frames, now),
        *(Operation.WRITE, Resource.TOPIC, QuotaClass.PRODUCE),
        needs_room=True,
    ),
    Api.FETCH: Row(
        lambda to, request, frames, now: to.fetch(request, now),
        *(Operation.READ, Resource.TOPIC, QuotaClass.FETCH),
    ),
    Api.LIST_OFFSETS: Row(
        lambda to, request, frames, now: to.list_offsets(request.body), *_DESCRIBE_TOPIC
    ),
    Api.DELETE_RECORDS: Row(
        lambda to, request, frames, now: to.delete_records(request.body),
        *(Operation.DELETE, Resource.TOPIC, QuotaClass.REQUEST),
        needs_room=True,
    ),
    # Readers report what they could not read, and so do followers.
    Api.REPORT_DAMAGE: Row(
        lambda to, request, frames, now: to.report_damage(request.body),
        *(Operation.READ, Resource.TOPIC, QuotaClass.REQUEST),
    ),
    # It names no topic: WRITE of any topic is enough, as in Kafka.
    Api.INIT_PRODUCER_ID: Row(
        lambda to, request, frames, now: to.init_producer_id(),
        *(Operation.WRITE, Resource.TOPIC, QuotaClass.REQUEST),
    ),
    Api.REPLICA_FETCH: Row(
        lambda to, request, frames, now: to.replica_fetches.fetch(request, now.monotonic),
        *_BETWEEN_BROKERS,
    ),
    Api.LOG_SIZES: Row(
        lambda to, request, frames, now: to.describe_logs(request.body),
        *(Operation.DESCRIBE, Resource.CLUSTER, QuotaClass.REQUEST),
    ),
    # It names an id or a GUID: READ of any subject that has this schema is enough.
    Api.GET_SCHEMA: Row(
        lambda to, request, frames, now: to.get_schema(request.body),
        *(Operation.READ, Resource.SUBJECT, QuotaClass.REQUEST),
    ),
    # Kafka asks for READ; here a producer asks how far it got, and has WRITE alone.
    Api.DESCRIBE_PRODUCERS: Row(
        lambda to, request, frames, now: to.describe_producers(request.body, now),
        *_DESCRIBE_TOPIC,
        needs_room=True,
    ),
}


def handle(
    handlers: RequestHandlers, request: Request, payloads: Sequence[memoryview], now: Now
) -> Outcome | JobGenerator:
    """Carry a request out, or begin to. Raises FolkmootError for the whole of it."""
    body = request.body
    api = API_OF[type(body)]
    expected = len(body.entries) if api is Api.PRODUCE else 0
    if len(payloads) != expected:
        raise InvalidRequest(f"{len(payloads)} payload frames instead of {expected}")
    row = TABLE[api]
    if row.needs_room:
        handlers.purgatory.require_room(request.peer)
    return row.handler(handlers, request, payloads, now)
