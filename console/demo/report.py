"""What the demo shows: lines, a progress bar, tables; plain text when nobody looks at a terminal."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from folkmoot.console.demo.direct import Sums
from folkmoot.console.tables import show

PLAIN_STEPS: Final = 10


class Bar(Protocol):
    """Shows how much of something is done."""

    def reach(self, done: int) -> None: ...


class Screen:
    """Where the demo writes. Every line begins with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._rich = sys.stdout.isatty()
        self._console: Any = None

    def title(self, text: str) -> None:
        self.line("")
        self.line(text)

    def line(self, text: str) -> None:
        stamp = f"{time.monotonic() - self._start:6.1f} s  " if text else ""
        if self._console is not None:
            # Above the bar that is being drawn.
            self._console.print(stamp + text, markup=False, highlight=False)
        else:
            print(stamp + text, flush=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Bar]:
        """A bar for the length of the block; without a terminal a line at every tenth."""
        if not self._rich:
            yield _PlainBar(self, title, total)
            return
        from rich import progress

        drawn = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with drawn:
            self._console = drawn.console
            try:
                yield _RichBar(drawn, drawn.add_task(title, total=total))
            finally:
                self._console = None


class _PlainBar:
    def __init__(self, screen: Screen, title: str, total: int) -> None:
        self._screen, self._title, self._total = screen, title, total
        self._told = 0

    def reach(self, done: int) -> None:
        step = done * PLAIN_STEPS // self._total if self._total else PLAIN_STEPS
        if step > self._told:
            self._told = step
            self._screen.line(f"  {self._title}: {done:,} of {self._total:,}")


class _RichBar:
    def __init__(self, drawn: Any, task: Any) -> None:
        self._drawn, self._task = drawn, task

    def reach(self, done: int) -> None:
        self._drawn.update(self._task, completed=done)


def carriers(sums: Mapping[str, Sums]) -> None:
    """The table by carrier, most flights first. Means and shares are made here, out of integers."""
    rows = []
    for carrier, (flights, delayed, minutes, cancelled) in sorted(
        sums.items(), key=lambda item: (-item[1][0], item[0])
    ):
        mean = f"{minutes / delayed:.1f}" if delayed else "-"
        rows.append((carrier, flights, mean, f"{100 * cancelled / flights:.1f} %"))
    show(("carrier", "flights", "mean departure delay (min)", "cancelled"), rows)


def summary(facts: Sequence[tuple[str, str]]) -> None:
    """Facts under each other."""
    width = max(len(name) for name, _ in facts)
    for name, fact in facts:
        print(f"{name.ljust(width)}  {fact}", flush=True)
