"""Operations as calls of kazoo, and kazoo's results as outcomes."""

from __future__ import annotations  # kazoo's generic classes are so in the stubs only

from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionDropped,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    Check,
    Children,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionLost,
    Set,
    Stat,
    Sync,
    WatchCallback,
    Write,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Outcome

# What a transaction answers for the writes besides the one that could not be done.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)

_REFUSALS: dict[type[Exception], tuple[type[ZooKeeperError], str]] = {
    NoNodeError: (NoNode, "no such node"),
    NodeExistsError: (NodeExists, "the node exists"),
    BadVersionError: (BadVersion, "the node was written since the version named"),
    NotEmptyError: (NotEmpty, "the node has children"),
}
# A RuntimeError is that of kazoo's connection thread when ZooKeeper has left an answer out and gives the
# next one, as it may when somebody else ends the session; the thread ends with it, and so the session.
_CONNECTION = (
    *(ConnectionLoss, ConnectionDropped, OperationTimeoutError, SessionMovedError),
    RuntimeError,
)


class _Watch:
    """What kazoo calls. Equal for equal rings: kazoo keeps one of them per node, however often it is
    armed before it fires, and a node that is read for ever costs no memory."""

    __slots__ = ("_ring",)

    def __init__(self, ring: WatchCallback) -> None:
        self._ring = ring

    def __call__(self, event: WatchedEvent) -> None:
        self._ring()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self._ring == other._ring

    def __hash__(self) -> int:
        return hash(self._ring)


def _watch(ring: WatchCallback | None) -> _Watch | None:
    return None if ring is None else _Watch(ring)


def begin(client: KazooClient, chroot: str, operation: Operation) -> IAsyncResult[Any]:
    """Queue the operation with kazoo, once. Never raises: what kazoo does not take, fails."""
    try:
        return _begin(client, chroot, operation)
    except (TypeError, ValueError) as error:
        refused = client.handler.async_result()
        refused.set_exception(error)
        return refused


def _begin(client: KazooClient, chroot: str, operation: Operation) -> IAsyncResult[Any]:
    match operation:
        case Get(path, watch):
            return client.get_async(_absolute(chroot, path), _watch(watch))
        case Exists(path, watch):
            return client.exists_async(_absolute(chroot, path), _watch(watch))
        case Children(path, watch):
            return client.get_children_async(_absolute(chroot, path), _watch(watch))
        case Sync(path):
            return client.sync_async(_absolute(chroot, path))
        case Create(path, data, ephemeral, sequence):
            return client.create_async(
                _absolute(chroot, path), data, ephemeral=ephemeral, sequence=sequence
            )
        case Set(path, data, version):
            return client.set_async(_absolute(chroot, path), data, version)
        case Delete(path, version):
            return client.delete_async(_absolute(chroot, path), version)
        case Multi(writes):
            return _begin_multi(client, chroot, writes)


def _begin_multi(client: KazooClient, chroot: str, writes: tuple[Write, ...]) -> IAsyncResult[Any]:
    transaction = client.transaction()
    for write in writes:
        path = _absolute(chroot, write.path)
        match write:
            case Create(_, data, ephemeral, sequence):
                transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
            case Set(_, data, version):
                transaction.set_data(path, data, version)
            case Delete(_, version):
                transaction.delete(path, version)
            case Check(_, version):
                transaction.check(path, version)
    return transaction.commit_async()


def outcome(operation: Operation, chroot: str, result: IAsyncResult[Any]) -> Outcome:
    """How an operation that kazoo is done with has ended."""
    failure = result.exception
    if failure is not None:
        subject = "transaction" if isinstance(operation, Multi) else operation.path
        return Outcome(None, _error(subject, failure))
    answer = result.get_nowait()
    match operation:
        case Get():
            data, stat = answer
            return Outcome(Node(data or b"", _stat(stat)), None)
        case Exists():
            return Outcome(None if answer is None else _stat(answer), None)
        case Children():
            return Outcome(answer, None)
        case Multi(writes):
            return _multi_outcome(writes, chroot, answer)
        case Sync():
            return Outcome(None, None)
        case _:
            return Outcome(_written(operation, chroot, answer), None)


def _multi_outcome(writes: tuple[Write, ...], chroot: str, answers: list[Any]) -> Outcome:
    failed = [
        (index, answer)
        for index, answer in enumerate(answers)
        if isinstance(answer, Exception) and not isinstance(answer, _BYSTANDERS)
    ]
    if failed:
        index, failure = failed[0]
        return Outcome(None, MultiFailed(index, _error(writes[index].path, failure)))
    results = [
        _written(write, chroot, answer) for write, answer in zip(writes, answers, strict=True)
    ]
    return Outcome(results, None)


def _written(write: Write, chroot: str, answer: Any) -> str | int | None:
    match write:
        case Create():
            return str(answer).removeprefix(chroot)
        case Set():
            return int(answer.version)
        case _:
            return None


def _error(subject: str, failure: BaseException) -> ZooKeeperError:
    refused = _REFUSALS.get(type(failure))  # type: ignore[arg-type]
    if refused is not None:
        kind, why = refused
        return kind(f"{subject}: {why}")
    if isinstance(failure, SessionExpiredError):
        return SessionLost("the ZooKeeper session is over")
    if isinstance(failure, _CONNECTION):
        return ConnectionLost(f"{subject}: the connection to ZooKeeper broke before the answer")
    return ZooKeeperError(
        f"{subject}: ZooKeeper refused: {type(failure).__name__} {failure}".rstrip()
    )


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner, stat.mtime)


def _absolute(chroot: str, path: str) -> str:
    return chroot if chroot and path == "/" else chroot + path
