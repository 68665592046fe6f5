"""The meanings of exit codes, and the code of each error."""

from typing import Final

from folkmoot.protocol.errors import (
    BrokerIdTaken,
    BrokerUnreachable,
    ConfigError,
    DeliveryTimeout,
    DirectoryLocked,
    DiskFailed,
    ElectionImpossible,
    FlushTimeout,
    FolkmootError,
    GroupNotEmpty,
    InvalidName,
    InvalidReplicationFactor,
    InvalidSubject,
    OperationNotPermitted,
    ReferenceExists,
    RequestTimeout,
    StaleTopicId,
    ZooKeeperUnreachable,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
DEGRADED: Final = 5
DISK_FAILED: Final = 6
INCOMPLETE: Final = 7
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "done",
    FAILED: "failed",
    USAGE: "wrong usage",
    UNREACHABLE: "ZooKeeper or brokers did not answer",
    REFUSED: "refused for safety",
    DEGRADED: "degraded",
    DISK_FAILED: "the disk failed",
    INCOMPLETE: "not everything was read",
    INTERRUPTED: "interrupted",
}
"""Shown by the help, and in docs/operations.md."""


class NotConfirmed(FolkmootError):
    """An operation that cannot be undone was not confirmed."""


class RegistryUnreachable(FolkmootError):
    """A schema registry behind HTTP does not answer."""


class IncompleteRead(FolkmootError):
    """The ends of some partitions were not reached, and no more records come."""


EXIT_CODES: Final[dict[type[FolkmootError], int]] = {
    ConfigError: USAGE,
    InvalidName: USAGE,
    InvalidReplicationFactor: USAGE,
    InvalidSubject: USAGE,
    BrokerUnreachable: UNREACHABLE,
    DeliveryTimeout: UNREACHABLE,
    FlushTimeout: UNREACHABLE,
    RegistryUnreachable: UNREACHABLE,
    RequestTimeout: UNREACHABLE,
    ZooKeeperUnreachable: UNREACHABLE,
    BrokerIdTaken: REFUSED,
    DirectoryLocked: REFUSED,
    ElectionImpossible: REFUSED,
    GroupNotEmpty: REFUSED,
    NotConfirmed: REFUSED,
    OperationNotPermitted: REFUSED,
    ReferenceExists: REFUSED,
    StaleTopicId: REFUSED,
    DiskFailed: DISK_FAILED,
    IncompleteRead: INCOMPLETE,
}


def exit_code(error: FolkmootError) -> int:
    """Return the process's exit code for an error."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), FAILED)
