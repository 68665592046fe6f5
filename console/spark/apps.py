"""The example applications, by their names."""

import difflib
from pathlib import Path
from typing import Final

from folkmoot.protocol.errors import ConfigError

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples" / "spark"
"""In a checkout and in a wheel."""


def apps() -> dict[str, Path]:
    return {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}


def find_app(name: str) -> Path:
    """Return the file of an application, given by its name or path. Raises ConfigError."""
    known, path = apps(), Path(name)
    if name in known:
        return known[name]
    if path.suffix == ".py":
        if path.is_file():
            return path
        raise ConfigError(f"there is no file {name}")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}."
    raise ConfigError(f"unknown app {name}: {hint} Or give the path of a .py")
