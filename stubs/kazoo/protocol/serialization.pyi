from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL

_Watch = Callable[[WatchedEvent], object] | None

class Connect(NamedTuple):
    protocol_version: int
    last_zxid_seen: int
    time_out: int
    session_id: int
    passwd: bytes
    read_only: bool

    def serialize(self) -> bytes: ...

class Create(NamedTuple):
    path: str
    data: bytes
    acl: Sequence[ACL]
    flags: int

class Delete(NamedTuple):
    path: str
    version: int

class Exists(NamedTuple):
    path: str
    watcher: _Watch

class GetData(NamedTuple):
    path: str
    watcher: _Watch

class GetChildren(NamedTuple):
    path: str
    watcher: _Watch

class SetData(NamedTuple):
    path: str
    data: bytes
    version: int

class Sync(NamedTuple):
    path: str

class CheckVersion(NamedTuple):
    path: str
    version: int

class Transaction(NamedTuple):
    operations: Sequence[Any]
