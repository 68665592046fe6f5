"""Child processes: their end, and what is said when they fail."""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import pytest

from folkmoot.console.running import children as module
from folkmoot.console.running.children import ChildProcess, StartFailed, free_port, port_is_free
from tests.processes import state
from tests.waiting import eventually


def python(tmp_path: Path, code: str) -> ChildProcess:
    return ChildProcess("the child", [sys.executable, "-S", "-u", "-c", code], tmp_path / "log")


FOREVER = "import time; print('up'); time.sleep(600)"


def up(child: ChildProcess) -> bool | None:
    return "up" in child.output() or None


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    child = python(tmp_path, FOREVER)
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    try:
        assert child.wait_until(lambda: up(child), timeout=10)
        assert child.is_running
    finally:
        child.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from folkmoot.console.running.children import ChildProcess\n"
        f"child = ChildProcess('c', [sys.executable, '-c', {FOREVER!r}], Path(sys.argv[1]))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert state(pid) != "X"
        parent.send_signal(how)
    eventually(lambda: state(pid) == "X")


def test_a_child_that_ends_early_is_an_error_with_its_last_word_and_lines(tmp_path: Path) -> None:
    child = python(tmp_path, "print('one'); print('two'); print('\\tat two'); raise SystemExit(7)")
    child.start()
    with pytest.raises(StartFailed, match=r"exit code 7, it said: two \(log: ") as caught:
        child.wait_until(lambda: None, timeout=10)
    assert caught.value.__notes__ == ["one", "two"]


def test_the_error_that_a_child_names_is_told_rather_than_its_last_line(tmp_path: Path) -> None:
    child = python(
        tmp_path, "print('a.b.SomeException: the cause'); print('bye'); raise SystemExit(1)"
    )
    child.start()
    with pytest.raises(StartFailed, match=r"exit code 1, it said: a\.b\.SomeException: the cause"):
        child.wait_until(lambda: None, timeout=10)


def test_a_child_that_is_never_ready_is_an_error(tmp_path: Path) -> None:
    child = python(tmp_path, FOREVER)
    child.start()
    try:
        with pytest.raises(StartFailed, match=r"was not ready within 0\.05 s"):
            child.wait_until(lambda: None, timeout=0.05)
    finally:
        child.kill()


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    child = ChildProcess("the child", [str(tmp_path / "nothing")], tmp_path / "log")
    child.start()
    with pytest.raises(StartFailed, match="No such file"):
        child.wait_until(lambda: None, timeout=10)


def test_a_child_is_paused_resumed_and_stopped_while_paused(tmp_path: Path) -> None:
    child = python(tmp_path, FOREVER)
    child.start()
    child.wait_until(lambda: up(child), timeout=10)
    child.pause()
    eventually(lambda: state(child.pid) == "T")
    child.resume()
    eventually(lambda: state(child.pid) == "S")
    child.pause()
    assert child.stop(timeout=10) == -signal.SIGTERM
    assert not child.is_running


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = python(
        tmp_path, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
    )
    child.start()
    child.wait_until(lambda: up(child), timeout=10)
    assert child.stop(timeout=0.1) == -signal.SIGKILL


def test_output_is_what_came_since_the_last_start(tmp_path: Path) -> None:
    child = python(tmp_path, "import os; print('run', os.getpid())")
    pids = []
    for _ in range(2):
        child.start()
        pids.append(child.pid)
        eventually(lambda: not child.is_running)
        assert child.output() == f"run {pids[-1]}\n"
    assert child.log.read_text() == "".join(f"run {pid}\n" for pid in pids)


def test_a_forked_copy_of_the_process_can_start_children_too(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from folkmoot.console.running.children import ChildProcess\n"
        "def run(name):\n"
        "    child = ChildProcess('c', [sys.executable, '-c', 'pass'], Path(sys.argv[1]) / name)\n"
        "    child.start()\n"
        "    assert child._process.wait(20) == 0\n"
        "run('one')\n"
        "if pid := os.fork():\n"
        "    sys.exit(os.waitpid(pid, 0)[1])\n"
        "run('two')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, timeout=30, env=dict(os.environ)).returncode == 0


def test_free_ports_are_below_those_that_the_kernel_hands_out() -> None:
    port = free_port()
    assert port_is_free(port)
    assert port < 32_768


def test_a_free_port_is_given_to_one_only_although_nobody_listens_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_recent_ports", deque())  # other tests may have been given them
    drawn = iter([20_001, 20_001, 20_001, 20_002])
    monkeypatch.setattr("random.SystemRandom.randrange", lambda *_: next(drawn))
    monkeypatch.setattr("folkmoot.console.running.children.port_is_free", lambda _: True)
    assert [free_port(), free_port()] == [20_001, 20_002]
