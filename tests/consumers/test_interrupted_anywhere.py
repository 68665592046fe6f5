"""Ctrl-C at any line of the fetcher: whatever step runs, no record is passed over."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from folkmoot.protocol.errors import DeserializationError, FolkmootError
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import ZERO, Bench, spoiled_body

BATCHES = [a_batch(2 * number, b"a", b"b") for number in range(6)]
END = 12
ALL = [*range(END)]


class Interruption:
    """Raises KeyboardInterrupt at the `line`th line that runs in the fetcher's folder."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/consumers/fetch/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def during(self, step: Callable[[], object]) -> bool:
        """Whether it came."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            step()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def read_on(bench: Bench, log: list[bytes], seen: list[int]) -> None:
    """Read to the end of the log, or to an error: what lies behind that a seek brings."""
    cluster: Any = bench.cluster
    cluster.asked.clear()
    bench.fetcher._sessions.reset(bench.fetcher._states.values())
    for _ in range(30):
        bench.now += 1.0
        try:
            bench.fetcher.check()
        except FolkmootError:
            seen += range(bench.fetcher._states[ZERO].position, END)
            return
        while (view := bench.fetcher.take_view(100)) is not None:
            seen += view.offsets
            bench.fetcher.rotation.keep()
        bench.poll()
        while cluster.asked:
            asked = cluster.next()
            (entry,) = asked.request.entries
            rest = [each for number, each in enumerate(log) if 2 * number + 2 > entry.offset]
            cluster.answer(asked, b"".join(rest), end=END)
            bench.poll()


def adding(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    bench = Bench()
    bench.reading()
    bench.cluster.answer(bench.cluster.next(), b"".join(BATCHES[:3]), end=END)
    return bench, interruption.during(lambda: bench.fetcher.poll(0.0))


def opening(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    bench = Bench(partition_fetch_bytes=len(BATCHES[0]))
    bench.reading()
    bench.fetched(BATCHES[0], end=END)
    return bench, taking(bench, interruption, seen)


def meeting_an_illegible_batch(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    log = [*BATCHES[:2], spoiled_body(BATCHES[2]), *BATCHES[3:]]
    bench = Bench()
    bench.reading()
    bench.fetched(b"".join(log), end=END)
    for _ in range(2):
        view = bench.fetcher.take_view(100)
        assert view is not None
        seen += view.offsets
    bench.fetcher.rotation.keep()
    return bench, taking(bench, interruption, seen)


def taking(bench: Bench, interruption: Interruption, seen: list[int]) -> bool:
    taken: list[int] = []

    def take() -> None:
        view = bench.fetcher.take_view(100)
        taken.extend(() if view is None else view.offsets)

    if interruption.during(take):
        bench.fetcher.rotation.take_all_back()
        return True
    seen += taken
    return False


def stopping(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    """A record could not be deserialized."""
    bench = Bench()
    bench.reading()
    bench.fetched(b"".join(BATCHES), end=END)
    assert bench.fetcher.take_view(100) is not None
    error = DeserializationError("no such thing")
    came = interruption.during(lambda: bench.fetcher.stop_at(ZERO, 1, error))
    if came:
        bench.fetcher.rotation.take_all_back()
    else:
        seen += [0]
    return bench, came


def letting_go_of_what_is_paused(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    bench = Bench(buffer_bytes=200)
    bench.reading()
    bench.fetched(b"".join(BATCHES), end=END)
    bench.cluster.asked.clear()
    bench.fetcher.pause(ZERO, True)
    assert bench.values() == []
    came = interruption.during(bench.fetcher.ask)
    bench.fetcher.pause(ZERO, False)
    return bench, came


def seeking(interruption: Interruption, seen: list[int]) -> tuple[Bench, bool]:
    """Interrupted it has happened, or it has not."""
    bench = Bench()
    bench.reading()
    bench.fetched(b"".join(BATCHES[:3]), end=END)
    came = interruption.during(lambda: bench.fetcher.seek(ZERO, 9))
    seen += range(bench.fetcher._states[ZERO].position)
    return bench, came


@pytest.mark.parametrize(
    "step",
    [adding, opening, meeting_an_illegible_batch, stopping, letting_go_of_what_is_paused, seeking],
)
def test_an_interruption_at_any_line_passes_over_no_record(
    step: Callable[[Interruption, list[int]], tuple[Bench, bool]],
) -> None:
    line, came = 0, True
    while came:
        line += 1
        interruption, seen = Interruption(line), list[int]()
        bench, came = step(interruption, seen)
        read_on(bench, BATCHES, seen)
        assert set(seen) >= set(ALL), f"{interruption.where}: only {seen}"
        buffer = bench.fetcher._states[ZERO].buffer
        assert buffer._fetched or not buffer.size, f"{interruption.where}: {buffer.size}"
    assert line > 10
