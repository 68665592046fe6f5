"""The wakeup that wakes a loop."""

import os
import resource
import threading
from collections import deque
from contextlib import ExitStack, closing

from folkmoot.coordination.wakeup import Wakeup
from tests.consumers.test_forks import in_child


def test_wakes_before_it_is_looked_at_count_once_and_later_ones_again() -> None:
    with closing(Wakeup()) as wakeup:
        for _ in range(3):
            wakeup.wake()
            wakeup.wake()
            assert wakeup.wait(0)
            assert not wakeup.wait(0)


def test_a_process_with_thousands_of_open_files_can_wait() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as cleanup:
        cleanup.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
        while cleanup.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        wakeup = cleanup.enter_context(closing(Wakeup()))
        assert wakeup.fileno() > 1024
        assert not wakeup.wait(0)
        wakeup.wake()
        assert wakeup.wait(1e10)


def test_whoever_is_told_something_and_then_woken_sees_it_whatever_the_threads_do() -> None:
    """A ring that is saved because it is awake already must not be one that nobody hears."""
    told: deque[int] = deque()
    with closing(Wakeup()) as wakeup:

        def tell() -> None:
            for number in range(5_000):
                told.append(number)
                wakeup.wake()

        threads = [threading.Thread(target=tell) for _ in range(3)]
        for thread in threads:
            thread.start()
        heard = 0
        while heard < 15_000:
            assert wakeup.wait(10.0), "it was deaf"
            while told:
                told.popleft()
                heard += 1
        for thread in threads:
            thread.join()


def test_a_closed_wakeup_wakes_nobody() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.close()
    wakeup.wake()
    wakeup.close()


def test_what_has_the_descriptor_after_a_close_is_not_read() -> None:
    """A callback that is still waiting for a commit when its consumer closes."""
    wakeup = Wakeup()
    number = wakeup.fileno()
    wakeup.close()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.dup2(reader, number)
    try:
        os.write(writer, b"theirs")
        wakeup.wait(0.0)
        assert os.read(number, 100) == b"theirs"
    finally:
        for each in {reader, writer, number}:
            os.close(each)


def test_many_wakes_cost_one_write() -> None:
    with closing(Wakeup()) as wakeup:
        for _ in range(100):
            wakeup.wake()
        assert os.read(wakeup.fileno(), 4096) == b"!"


def test_a_forked_child_neither_hears_its_parent_s_wakes_nor_is_heard_there() -> None:
    with closing(Wakeup()) as wakeup:
        wakeup.wake()

        def work() -> None:
            assert not wakeup.wait(0)
            wakeup.wake()
            assert wakeup.wait(0)
            wakeup.wake()

        assert in_child(work) == 0
        assert wakeup.wait(0)
        assert not wakeup.wait(0)
