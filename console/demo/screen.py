"""Output of the demo: lines and progress bars; without a terminal, plain text."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress


class Screen:
    """The demo's terminal. Every line begins with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._console = Console(markup=False, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._start:6.1f} s  {text}")

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield what shows how many are done: in a bar, or else in a line at every tenth."""
        is_plain = not self._console.is_terminal
        tenths = 0

        def show(count: int) -> None:
            nonlocal tenths
            progress.update(task, completed=count)
            if is_plain and count * 10 // total > tenths:
                tenths = count * 10 // total
                self.line(f"  {title}: {count:,} of {total:,}")

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self._console, disable=is_plain) as progress:
            task = progress.add_task(title, total=total)
            yield show
