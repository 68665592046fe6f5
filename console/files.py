"""Text files that options name: read, and written whole or not at all."""

import os
import sys
from pathlib import Path
from typing import Final

from folkmoot.protocol.errors import ConfigError

STANDARD: Final = "-"
"""The name of the standard input."""


def read_text(path: Path | str) -> str:
    """Return the text of a file or of the standard input, without a byte order mark. Raises ConfigError."""
    try:
        is_input = str(path) == STANDARD
        text = sys.stdin.read() if is_input else Path(path).read_text(encoding="utf-8")
        return text.removeprefix("\ufeff")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is not UTF-8") from None


def write_text(path: Path, text: str) -> None:
    """Write a file: all of it, or it stays what it was. A link's target is written, a pipe as it is.

    Raises ConfigError.
    """
    try:
        if path.is_file() or not path.exists():
            path = Path(os.path.realpath(path))
            new = path.with_name(f"{path.name}.new")
            try:
                new.write_text(text, encoding="utf-8")
                os.replace(new, path)
            except OSError:
                new.unlink(missing_ok=True)
                raise
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
