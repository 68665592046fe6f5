"""`make simulate`: what is done is not done again, and what is broken is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation import fingerprint


def test_histories_are_noted_and_not_lived_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert command.main(["98..101", "--state", str(state), "--jobs", "1"]) == 0
    lines = [line for line in state.read_text().splitlines() if line]
    assert len(lines) == 2
    state.write_text(lines[0] + "\n" + lines[1][:40])  # the end was cut off by a crash
    assert command.main(["98..101", "--state", str(state), "--jobs", "1"]) == 0
    assert "code" in capsys.readouterr().out
    assert len(command.earlier(state, f"groups {fingerprint.fingerprint()}")) == 2
    assert command.main(["98..101", "--state", str(state), "--jobs", "1"]) == 0
    assert len(command.earlier(state, f"groups {fingerprint.fingerprint()}")) == 2


def test_of_other_code_nothing_is_taken_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command.main(["1..1", "--state", str(state), "--jobs", "1"])
    assert command.earlier(state, "another") == []


def test_two_kinds_of_histories_of_the_same_code_share_a_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setitem(command.KINDS, "replication", command.KINDS["groups"])
    for kind in ("groups", "replication"):
        assert command.main(["1..1", "--of", kind, "--state", str(state), "--jobs", "1"]) == 0
    lines = [line for line in state.read_text().splitlines() if line]
    assert len(lines) == 2


def test_a_broken_promise_is_told_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = command.Done("code", 1, 1, 0.5, {"1": "Violation: a promise"}, {"fault": 2})
    assert command.tell([done], "tests/simulation") == 1
    assert "FOLKMOOT_SEED=1" in capsys.readouterr().out


def test_what_is_expected_and_never_happens_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    done = command.Done("code", 1, command.ENOUGH, 0.5, {}, {"fault": 2})
    assert command.tell([done], "tests/simulation", ["fault"]) == 0
    assert command.tell([done], "tests/simulation", ["fault", "truncation"]) == 1
    assert "these never happened: truncation" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "0", "5..", "..5", "9..5", "a..b", "-1..5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        command.main([text])


def test_so_many_histories_begin_where_the_code_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = []
    for code in ("00000010ffff", "00000011ffff"):
        monkeypatch.setattr(command, "fingerprint", lambda _, code=code: code)
        state = tmp_path / code
        assert command.main(["2", "--state", str(state), "--jobs", "1"]) == 0
        [done] = command.earlier(state, f"groups {code}")
        assert f"seeds {done.first}..{done.last}:" in capsys.readouterr().out
        assert done.last == done.first + 1
        firsts.append(done.first)
    assert firsts == [16_000, 17_000]


def test_the_fingerprint_is_of_what_a_history_loads_and_of_nothing_else() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=fingerprint.ROOT, check=True, capture_output=True
    )
    needed = {Path(line) for line in loaded.stdout.decode().splitlines()}
    files = fingerprint.files()
    assert fingerprint.ROOT / "consumers" / "group" / "member_state.py" in needed
    assert needed <= files
    others = {"fetcher.py", "mutations.py", "__main__.py", "kazoo_adapter.py"}
    assert not others & {path.name for path in files}


_LOADED = """
import sys
import tests.simulation.history
for name, module in sys.modules.items():
    if name.startswith(("folkmoot.", "tests.simulation.")) and not hasattr(module, "__path__"):
        print(__import__("os").path.realpath(module.__file__))
"""
