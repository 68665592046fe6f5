"""How tests live through many histories, each of which follows from its seed."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import pytest

from tests.simulation.checks import Violation
from tests.simulation.fingerprint import fingerprint, first_seed
from tests.simulation.world import World


class Lived(Protocol):
    """A history, before or after it was lived through."""

    world: World

    def run(self) -> None:
        """Raises Violation."""
        ...


H = TypeVar("H", bound=Lived)


def raise_logged_faults(_logger: logging.Logger, message: str, *arguments: object) -> None:
    """In place of `Logger.exception`: what a broker logs, to go on with all else, ends a history."""
    raise AssertionError(f"a fault was logged: {message % arguments}")


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Thousands of lost sessions would be kept as thousands of warnings."""
    monkeypatch.setattr(logging.Logger, "exception", raise_logged_faults)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live_through(history: H) -> H:
    """Runs it; tells how to run it again if it breaks a promise."""
    try:
        history.run()
    except Exception as error:
        print(*history.world.lines(), sep="\n")
        print(f"{type(error).__name__}: {error}\nreplay with FOLKMOOT_SEED={history.world.seed}")
        raise
    return history


def live_through_many(make: Callable[[int], Lived], count: int) -> None:
    """So many. With FOLKMOOT_SEED that one alone, and its end is printed."""
    if "FOLKMOOT_SEED" in os.environ:
        print(*live_through(make(int(os.environ["FOLKMOOT_SEED"]))).world.lines(), sep="\n")
        return
    first = first_seed(fingerprint(make.__module__))
    print(f"seeds {first} to {first + count - 1}")
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        seen.update(live_through(make(seed)).world.seen)
    print(", ".join(f"{what} {count}" for what, count in sorted(seen.items())))


def expect_violation(
    make: Callable[[int], Lived],
    mutated: Callable[[], AbstractContextManager[None]],
    seeds: int,
    first: int = 0,
) -> None:
    """One of so many histories breaks a promise, and does not without the mutation."""
    for seed in range(first, first + seeds):
        with mutated():
            try:
                make(seed).run()
                continue
            except Violation as violation:
                print(f"seed {seed}: {violation}")
        live_through(make(seed))
        return
    pytest.fail("nobody noticed")
