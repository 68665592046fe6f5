"""Client processes: how they are told to go, heard, and measured."""

import sys
from pathlib import Path

import pytest

from benchmarks.measuring import cpu_seconds, memory
from benchmarks.programs import Program, ProgramFailed

WORKS = """
from benchmarks.clients.program import Parameters, Stopwatch, main
def work(given: Parameters) -> None:
    clock = Stopwatch()
    clock.start()
    sum(range(given["size"]))
    clock.stop()
    clock.report(given["size"], more=1)
main({"work": work})
"""


def program(code: str, tmp_path: Path, *arguments: str) -> Program:
    return Program([sys.executable, "-c", code, *arguments], tmp_path / "log")


def test_a_program_waits_for_the_word_and_tells_records_and_time(tmp_path: Path) -> None:
    outcome = program(WORKS, tmp_path, "work", '{"size": 100000}').run({})
    assert outcome.records == 100_000
    assert 0 < outcome.seconds < 60
    assert outcome.reported["more"] == 1
    assert outcome.facts["client growth"] >= 0
    assert outcome.facts["client CPU"] >= 0


def test_a_program_that_ends_early_fails_with_what_it_said(tmp_path: Path) -> None:
    broken = program("raise SystemExit('no such server')", tmp_path)
    with pytest.raises(ProgramFailed, match=r"ended before 'ready'.*\n.*no such server"):
        broken.run({})


def test_a_program_ends_when_nobody_speaks_to_it(tmp_path: Path) -> None:
    waiting = program(WORKS, tmp_path, "work", '{"size": 1}')
    with waiting:
        waiting.wait_ready()
        pid = waiting.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_tool_is_counted_with_all_of_its_life(tmp_path: Path) -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint('said')"
    said, outcome = program(code, tmp_path).run_tool({}, 1_000_000)
    assert said == "said\n"
    assert 0.2 <= outcome.facts["client CPU"] < 20
    assert outcome.facts["client growth"] > 1_000_000
    with pytest.raises(ProgramFailed, match="failed"):
        program("raise SystemExit(3)", tmp_path).run_tool({}, 1)


def test_a_process_that_is_gone_uses_nothing() -> None:
    assert cpu_seconds(2**22 + 1) == 0.0
    assert memory(2**22 + 1).resident == 0
