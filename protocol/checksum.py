"""CRC-32C, which covers every byte that is stored or sent.

It is an extension of the package `crc32c`, and is loaded without that package. The package looks up its
own version, which imports `importlib.metadata`, `email` and more: a tenth of a broker's start.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final, Protocol

_Bytes = bytes | bytearray | memoryview


class _Checksum(Protocol):
    """`value`: the checksum of the bytes before."""

    def __call__(self, data: _Bytes, value: int = 0, /) -> int: ...


def _load() -> _Checksum:
    package = find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("_crc32c", folders)
    if spec is None or spec.loader is None:
        from crc32c import crc32c as function

        return function
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    loaded: _Checksum = extension.crc32c
    return loaded


crc32c: Final = _load()
