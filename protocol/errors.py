"""Every error that Folkmoot raises, and the one bijection between wire codes and classes.

`FolkmootError` has two kinds of children: a `RetriableError` may go away when the same call is made
again, anything else will not. A class with a `code` can travel: a broker answers the code and a
sentence, the client raises the class. Codes are never reused or renumbered; names may change.

Shape after Kafka's `Errors.java` (one row per error: code, name, retriable or not).
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from folkmoot.protocol.records import Record

BY_CODE: dict[int, "type[FolkmootError]"] = {}


class FolkmootError(Exception):
    """Base of all errors raised by Folkmoot.

    `str(error)` is one line that names the thing and what to do.
    """

    code: ClassVar[int] = 0
    """Its number on the wire; 0: it has none."""

    def __init_subclass__(cls, code: int = 0) -> None:
        if code:
            cls.code = code
            BY_CODE[code] = cls

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep attributes between processes, for constructors of any kind."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(
    kind: type[FolkmootError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> FolkmootError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


class RetriableError(FolkmootError):
    """The same call may succeed later: leaders move, brokers restart, space returns."""


# -- errors that a broker sends --------------------------------------------------------------------


class UnknownServerError(FolkmootError, code=1):
    """The broker failed in a way that has no code of its own, or sent a code unknown here."""


class CorruptBatch(FolkmootError, code=2):
    """A batch does not match its checksum or breaks the format."""


class UnknownTopicOrPartition(RetriableError, code=3):
    """The topic or partition does not exist, or not yet, where it was asked for."""


class OffsetOutOfRange(FolkmootError, code=4):
    """The offset asked for lies before the log's start or after its end."""


class NotLeader(RetriableError, code=5):
    """The broker asked does not lead the partition; the answer names the one that does, if any."""


class BatchTooLarge(FolkmootError, code=6):
    """A batch is larger than the broker takes."""


class InvalidRequest(FolkmootError, code=7):
    """A request breaks the protocol: wrong types, missing frames, names that are not allowed."""


class UnsupportedVersion(FolkmootError, code=8):
    """Client and broker share no version of an api, or the broker's version cannot do what is asked for."""


class UnknownApi(FolkmootError, code=9):
    """The broker does not know the api asked for."""


class UnsupportedCodec(FolkmootError, code=10):
    """A batch is compressed with a codec that is not known or not installed here."""


class StorageError(RetriableError, code=11):
    """The broker could not write or read its disk."""


class BrokerStopping(RetriableError, code=12):
    """The broker is shutting down and takes no more work."""


class Overloaded(RetriableError, code=13):
    """A bounded queue of the broker is full."""


class StaleTopicId(RetriableError, code=14):
    """The topic was deleted and created again: offsets of the old one mean nothing."""


class DiskFull(StorageError, code=15):
    """The broker's disk is full: its records can be read, and appends continue when space returns."""


class DiskFailed(StorageError):
    """A flush has failed: what the broker's disk holds is not known, and the broker stops."""


class OutOfOrderSequence(FolkmootError, code=16):
    """A producer's batch does not follow the last one that the log has of it; it was not appended."""


class ProducerFenced(FolkmootError, code=17):
    """A newer epoch of this producer has written to the partition; the batch was not appended."""


class UnknownProducer(FolkmootError, code=18):
    """The log does not know (any more) a producer whose sequence is not 0; nothing was appended."""


class UnknownFetch(RetriableError, code=19):
    """A fetch continues one that the broker does not know (any more)."""


class ResponseTooLarge(FolkmootError, code=20):
    """The answer is larger than an envelope may be: ask for less at a time."""


class FencedLeaderEpoch(RetriableError, code=21):
    """A replica has fetched in a leader epoch that is over: a newer one has begun."""


class UnknownLeaderEpoch(RetriableError, code=22):
    """A replica has fetched in a leader epoch that the broker asked has not heard of yet."""


class NotEnoughReplicas(RetriableError, code=23):
    """Fewer replicas are in sync than `min_in_sync`: the batch was not appended."""


class NotEnoughReplicasAfterAppend(RetriableError, code=24):
    """The batch was appended, and not committed: fewer replicas are in sync than `min_in_sync` by now, or
    the leader is not one any more."""


class OffsetNotAvailable(RetriableError, code=25):
    """The partition has a new leader, which does not know yet what was committed before."""


class UnknownReplica(RetriableError, code=26):
    """A fetch came from no replica of the partition, or from none that is registered so."""


class RequestTimeout(RetriableError, code=27):
    """No answer came in time, or the broker had none: the request may or may not have been carried
    out, a batch may be committed later."""


class LogTruncated(FolkmootError, code=29):
    """Records that were read are not on the partition's log any more: an unclean election has lost them.

    Read was up to `offset`; from `diverging_offset` on the log has other records, or none.
    """

    topic: str = ""
    partition: int = -1
    offset: int = -1
    diverging_offset: int = -1


class NoProducerId(RetriableError, code=30):
    """The broker has no producer id left, and has not got more from ZooKeeper yet."""


# -- errors that arise in a client or a tool -------------------------------------------------------


class ConfigError(FolkmootError, ValueError):
    """An option is unknown, missing or outside its range."""


class NoCluster(ConfigError):
    """No cluster was ever made below the chroot of the connect string: it is misspelt, or no broker has
    run there yet."""


class InvalidName(FolkmootError, ValueError):
    """A topic, group or member name that is not `[a-zA-Z0-9._-]{1,249}`."""


class PartitionerFailed(FolkmootError):
    """The application's own partitioner raised an error, or chose what is no partition."""


class MissingExtra(FolkmootError, ImportError):
    """An optional dependency is not installed; the message gives the pip command."""


def pip_command(extra: str) -> str:
    """Return the command that installs an extra into this installation, which may be a checkout."""
    # Imported here, since everything imports this module.
    from importlib import metadata
    from urllib.parse import unquote

    try:
        origin = json.loads(metadata.distribution("folkmoot").read_text("direct_url.json") or "{}")
        url, is_editable = origin["url"], origin.get("dir_info", {}).get("editable", False)
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        url, is_editable = "", False
    if not url.startswith("file://"):
        return f"pip install 'folkmoot[{extra}]'"
    path = unquote(url.removeprefix("file://"))
    return f"pip install {'-e ' if is_editable else ''}'{path}[{extra}]'"


class ClosedError(FolkmootError):
    """The object was closed, or never started."""


class ConcurrentUse(FolkmootError):
    """Two threads used an object that belongs to one."""


class BrokerUnreachable(RetriableError):
    """No connection to a broker, or it vanished before it answered."""


class SchemaRefused(FolkmootError, code=32):
    """A batch has a schema that is no live version of the subject that its topic requires."""


class ZooKeeperUnreachable(RetriableError, code=31):
    """No ZooKeeper server of the connect string answers, or has answered the broker that was asked."""


class ZooKeeperRefused(FolkmootError):
    """ZooKeeper refuses an operation, and will refuse it again: an ACL forbids it, or it is too large."""


class DeliveryTimeout(FolkmootError):
    """A record was not acknowledged within `delivery_timeout`; it may or may not be in the log."""


class RecordsPurged(FolkmootError):
    """`purge` gave the record up, while it was not in flight."""


class RowsChanged(RetriableError):
    """A task that runs again has other rows than were written before; the next attempt writes all of its
    own, after those."""


class FlushTimeout(RetriableError):
    """Records were still not acknowledged when `flush` or `close` had to end."""


class BufferFull(RetriableError):
    """The producer's buffer stayed full for `max_block`.

    `delivery`: of a `send_batch`, the BatchDelivery of the rows that were taken before.
    """

    delivery: Any = None


class RecordTooLarge(FolkmootError, ValueError):
    """A single record is larger than a batch may be."""


class NoOffset(FolkmootError):
    """A partition has neither a committed offset nor a policy that says where to start."""


class NotOwner(FolkmootError):
    """The partition is no longer owned by this member: another one has the fencing epoch."""


class CommitBehind(FolkmootError, ValueError):
    """The offset lies before what the group has committed: only a reset sets a group back."""


class InstanceReplaced(FolkmootError):
    """A newer process uses this member's instance id."""


class NotAssigned(FolkmootError, ValueError):
    """The partition is not among those that this consumer reads."""


class TopicExists(FolkmootError):
    """A topic of that name exists already."""


class InvalidReplicationFactor(FolkmootError, ValueError):
    """A topic cannot have this many replicas: fewer brokers are alive."""


class InvalidReplicaAssignment(FolkmootError, ValueError):
    """A partition cannot be held by these brokers."""


class ReassignmentInProgress(FolkmootError):
    """The partition's replicas are being moved: that has to end, or be cancelled, first."""


class NoReassignmentInProgress(FolkmootError):
    """The partition's replicas are not being moved."""


class ElectionImpossible(FolkmootError):
    """No broker that may lead the partition is there, or the one asked for may not."""


class BrokerIdTaken(FolkmootError):
    """Another live broker is registered under the same id."""


class DirectoryLocked(FolkmootError):
    """Another process uses the same data directory."""


class RecordsNotDeleted(FolkmootError):
    """Some partitions kept records that were to be deleted: `failed` says why, by partition.

    `starts` are the first offsets of the other partitions. Asking again is harmless.
    """

    def __init__(
        self, message: str, starts: Mapping[Any, int], failed: Mapping[Any, FolkmootError]
    ) -> None:
        super().__init__(message)
        self.starts = starts
        self.failed = failed


class AddressTaken(FolkmootError):
    """The port to listen on is in use, or the address is not one of this machine."""


class UnknownGroup(FolkmootError):
    """No group of that name has ever had a member."""


class GroupNotEmpty(FolkmootError):
    """A group has live members, so that it cannot be deleted."""


class RegistryError(FolkmootError):
    """The schema registry refused something. `error_code` is that of Confluent's REST API."""

    error_code: ClassVar[int] = 500


class SubjectNotFound(RegistryError):
    """No schema was ever registered under the subject, or all of them were deleted."""

    error_code = 40401


class VersionNotFound(RegistryError):
    """The subject has no such version, or it was deleted."""

    error_code = 40402


class SchemaNotFound(RegistryError, code=33):
    """No schema has the id asked for, or the subject has no such schema."""

    error_code = 40403
    schema_id: int | None = None
    """The one asked for, as far as a value had it in front."""


class SubjectSoftDeleted(RegistryError):
    """The subject was deleted before: what is left is to delete it permanently."""

    error_code = 40404


class SubjectNotSoftDeleted(RegistryError):
    """Only a subject that was deleted before can be deleted permanently."""

    error_code = 40405


class VersionSoftDeleted(RegistryError):
    """The version was deleted before: what is left is to delete it permanently."""

    error_code = 40406


class VersionNotSoftDeleted(RegistryError):
    """Only a version that was deleted before can be deleted permanently."""

    error_code = 40407


class NoSubjectCompatibility(RegistryError):
    """The subject has no compatibility level of its own."""

    error_code = 40408


class NoSubjectMode(RegistryError):
    """The subject has no mode of its own."""

    error_code = 40409


class IncompatibleSchema(RegistryError, ValueError):
    """A schema may not follow those before it. `findings` say why: schemas.avro's Findings."""

    error_code = 409

    def __init__(self, message: str, findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.findings = list(findings)


class InvalidSchema(RegistryError, ValueError):
    """A text that is not an Avro schema, or too large, or refers to what is not there."""

    error_code = 42201


class InvalidVersion(RegistryError, ValueError):
    """It is no version: use 1 or more, or "latest"."""

    error_code = 42202


class InvalidCompatibility(RegistryError, ValueError):
    """It is no compatibility level."""

    error_code = 42203


class InvalidMode(RegistryError, ValueError):
    """It is no mode."""

    error_code = 42204


class OperationNotPermitted(RegistryError):
    """The mode in force does not allow it: READONLY, IMPORT, or an id given outside of IMPORT."""

    error_code = 42205


class ReferenceExists(RegistryError):
    """A version cannot be deleted, because other schemas refer to it."""

    error_code = 42206


class InvalidSubject(RegistryError, ValueError):
    """It is no subject: use 1 to 512 printable characters."""

    error_code = 42208


class SerializationError(FolkmootError, ValueError):
    """A value does not fit its schema, or bytes are not what they claim to be.

    `schema_id` is that of the schema, None where there is none.
    """

    schema_id: int | None = None


class DeserializationError(SerializationError):
    """A record's key or value of which nothing can be made: `record` is as it was read, in bytes.

    `field` is "key" or "value"; its `schema_id` is None where the bytes begin with none.
    """

    record: "Record"
    field: str


def from_wire(code: int, message: str) -> FolkmootError:
    """The error for a code other than 0 that a broker answered."""
    cls = BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"error code {code} is not known here: {message}")
    return cls(message)
