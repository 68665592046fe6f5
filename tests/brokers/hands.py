"""A background whose jobs are done when a test says so."""

from collections.abc import Callable
from typing import Any


class Hands:
    """The thread beside the reactor, one job at a time and only when told."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, job: Callable[[], Any], report: Callable[[Any], None]) -> None:
        self.jobs.append((job, report))

    def work(self) -> None:
        job, report = self.jobs.pop(0)
        report(job())

    def work_all(self) -> None:
        while self.jobs:
            self.work()
