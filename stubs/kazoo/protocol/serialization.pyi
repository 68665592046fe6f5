from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kazoo.security import ACL

_Watch = Callable[..., object] | None

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
