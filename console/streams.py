"""The standard streams of this process, made so that no command has to mind how they were given.

One that is closed is None to Python, and its number would go to the next file that is opened, be it a
socket. So each is opened here, in their order: the input is empty, the output fails when it is written.
"""

import io
import os
import sys
from typing import Any, Final

from folkmoot.protocol.errors import FolkmootError

_AS_ESCAPES: Final = "backslashreplace"


class OutputFailed(FolkmootError):
    """The standard output cannot be written: it is closed, or its disk is full."""


class _Output(io.FileIO):
    """A file that says by a type of its own that it, and nothing else, could not be written."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # the reader has enough, which is no failure
            raise
        except OSError as error:
            raise OutputFailed(f"standard output cannot be written: {error.strerror}") from None


def prepare() -> None:
    """Once, before anything is read or written; text that they cannot take is written as escapes."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(_open_null(os.O_RDONLY))
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors=_AS_ESCAPES)
    if sys.stdout is None:
        sys.stdout = _output(_open_null(os.O_RDONLY), None, io.DEFAULT_BUFFER_SIZE)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        size = 0 if sys.stdout.write_through else io.DEFAULT_BUFFER_SIZE
        sys.stdout = _output(sys.stdout.fileno(), sys.stdout.encoding, size)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_open_null(os.O_WRONLY), "w", errors=_AS_ESCAPES)


def silence() -> None:
    """Let nothing more be written to the standard output, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _output(number: int, encoding: str | None, size: int) -> io.TextIOWrapper:
    raw = _Output(number, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw, size) if size else raw,
        encoding,
        _AS_ESCAPES,
        line_buffering=raw.isatty(),
        write_through=not size,
    )


def _open_null(flags: int) -> int:
    number = os.open(os.devnull, flags)
    os.set_inheritable(number, True)  # as the real ones are
    return number
