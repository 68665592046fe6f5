"""Writes to the disk: small files that a crash leaves whole or not at all, and calls of the system."""

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from folkmoot.protocol.checksum import crc32c
from folkmoot.protocol.errors import DiskFull, StorageError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_NEW_SUFFIX = ".new"
_SPARE_BYTES = 4096
_IOV_MAX = os.sysconf("SC_IOV_MAX")
_MAX_BYTES = 256 * 1024 * 1024  # the note of a million producers takes half of it


def write_atomic(
    path: Path, data: bytes, spare: Path | None = None, *, sync_name: bool = True
) -> None:
    """Replace the file at `path` by `data`, durably; without `sync_name` the name is on disk once the
    directory is flushed. Raises OSError.

    On a full disk the `spare` file (`make_spare`) becomes the new one; the room of the old one is used
    for the next spare file.
    """
    new = path.with_name(path.name + _NEW_SUFFIX)
    try:
        try:
            _write(new, "wb", data)
        except OSError as error:
            if spare is None or not is_full(error):
                raise
            try:
                spare.replace(new)  # if two threads need it, one of them gets it
            except FileNotFoundError:
                raise error from None
            _write(new, "r+b", data)
        new.replace(path)
    except OSError:
        with suppress(OSError):  # half of it would fill a full disk
            new.unlink()
        raise
    if sync_name:
        sync_directory(path.parent)
    if spare is not None:
        make_spare(spare, len(data))


def overwrite(path: Path, data: bytes) -> None:
    """Overwrite as many bytes of a file, durably, which needs no room. Raises OSError.

    A death in between leaves some of both.
    """
    _write(path, "r+b", data)


def _write(path: Path, mode: str, data: bytes) -> None:
    with path.open(mode) as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def make_spare(path: Path, size: int = 0) -> None:
    """Make a spare file of `size` bytes and a block more, if the disk has room for it."""
    with suppress(OSError):
        wanted = (-(-size // _SPARE_BYTES) + 1) * _SPARE_BYTES
        if not path.exists() or path.stat().st_size < wanted:
            write_atomic(path, bytes(wanted))


def write_checked(
    path: Path, data: bytes, spare: Path | None = None, *, sync_name: bool = True
) -> None:
    """Do as `write_atomic`, with the checksum of `data` in a line before it."""
    write_atomic(path, b"%08x\n%b" % (crc32c(data), data), spare, sync_name=sync_name)


def read_checked(path: Path) -> bytes | None:
    """Read what `write_checked` wrote; None if the file is missing or damaged. Raises OSError."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                return None
            checksum, _, data = file.read().partition(b"\n")
    except FileNotFoundError:
        return None
    return data if checksum == b"%08x" % crc32c(data) else None


def save_json(path: Path, value: object, spare: Path | None = None) -> None:
    """Replace the file by a value as JSON, behind its checksum, durably. Raises OSError."""
    write_checked(path, msgspec.json.encode(value), spare)


def load_json(path: Path, kind: type[_T]) -> _T | None:
    """Read what `save_json` wrote; None if it is missing or damaged. Raises OSError."""
    data = read_checked(path)
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        logger.warning("%s: not understood, ignored: %s", path, error)
        return None


def shorten(path: Path, size: int, *, is_mapped: bool) -> None:
    """Cut a file to `size` bytes, or replace it by a copy of those if it `is_mapped`, durably.

    A read of a mapping behind the end of its file is a SIGBUS: the old file stays until it is unmapped. A
    death leaves the old file, and maybe some of the new one under another name. Raises OSError.
    """
    if not is_mapped:
        os.truncate(path, size)
        sync_file(path)
        return
    new = path.with_name(path.name + _NEW_SUFFIX)
    try:
        with path.open("rb") as source, new.open("wb") as copy:
            position = 0
            while position < size:
                sent = os.sendfile(copy.fileno(), source.fileno(), position, size - position)
                if not sent:
                    raise OSError(errno.EIO, f"{path} has only {position} of {size} bytes")
                position += sent
            os.fsync(copy.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make it, and those above it, unless they exist, and flush their names. Raises OSError."""
    missing = [each for each in path.parents if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in (path, *missing):
        with suppress(PermissionError):  # its parent may not be readable
            sync_directory(each.parent)


def write_at(fd: int, parts: list[bytes | memoryview], position: int) -> int:
    """Write `parts` at `position`, by one call unless the kernel takes less; → where they end.

    `parts` is used up. Raises OSError; then any number of the bytes may be written.
    """
    first = 0
    while first < len(parts):
        written = os.pwritev(fd, parts[first : first + _IOV_MAX], position)
        if written == 0:
            raise OSError("nothing could be written")
        position += written
        while first < len(parts) and written >= len(parts[first]):
            written -= len(parts[first])
            first += 1
        if written:
            parts[first] = memoryview(parts[first])[written:]
    return position


def is_full(error: OSError) -> bool:
    """Return whether the disk has no room, which may pass."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether there is no descriptor left for a file, which may pass."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def disk_error(what: str, error: OSError) -> StorageError:
    """Return what to raise for an OSError: DiskFull, which may pass, or StorageError."""
    return (DiskFull if is_full(error) else StorageError)(f"{what}: {error.strerror or error}")
