"""`python -m benchmarks`, as a user calls it."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import throughput_summary
from benchmarks.bench_throughput import _check
from benchmarks.harness import SMOKE, Context, WrongCount
from benchmarks.peers import Unavailable
from benchmarks.peers.kafka import KafkaServer
from benchmarks.programs import Outcome
from benchmarks.results import Report, Results
from tests.tree import ROOT


@pytest.mark.slow
def test_a_tiny_throughput_runs_and_finds_every_record_again(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    arguments = ["throughput", "--smoke", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Folkmoot send()" in done.stdout
    assert "target" not in done.stdout
    (results,) = json.loads(output.read_text())["scenarios"]
    found = {cell["contender"] for cell in results["cells"]}
    assert {throughput_summary.SEND, throughput_summary.ARROW_IN} <= found


def test_an_unknown_scenario_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nothing"]) == 2
    assert "throughput" in capsys.readouterr().err


def test_a_directory_as_output_is_a_usage_error_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--smoke", "--output", str(tmp_path)]) == 2
    assert "name a file in it" in capsys.readouterr().err


def test_a_peer_that_is_not_here_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> None:
        raise Unavailable("no program mvn: install it")

    monkeypatch.setattr(KafkaServer, "prepare", prepare)
    found = Report(when="", command="", machine={}, versions={})
    assert list(command.prepare_peers(found, "kafka")) == ["folkmoot"]
    assert found.missing == {"kafka": "Apache Kafka 4.3.1: no program mvn: install it"}
    assert list(found.versions) == ["Folkmoot"]


def test_a_record_that_is_missing_or_doubled_makes_a_measurement_invalid() -> None:
    def read(records: int, **reported: int) -> Outcome:
        return Outcome(records=records, seconds=1.0, reported=reported)

    _check("a", read(10, end=10, bytes=1000), 10, 1000)
    for wrong in (read(9, end=10), read(10, end=11), read(10, end=10, bytes=999)):
        with pytest.raises(WrongCount):
            _check("a", wrong, 10, 1000)


def test_contenders_take_turns_and_begin_each_round_with_another(tmp_path: Path) -> None:
    results = Results(name="", title="")
    with Context({}, SMOKE, results, tmp_path / "work") as context:
        turns = list(context.rotation(["a", "b"], 3))
    assert turns == ["a", "b", "b", "a", "a", "b"]


def test_every_scenario_has_a_title_and_something_to_run() -> None:
    for name in command.scenarios():
        module = import_module(f"benchmarks.bench_{name}")
        assert module.TITLE
        assert callable(module.run)


@pytest.mark.slow
def test_short_measurements_of_latency_growth_and_restarts_run(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    assert command.main(["latency", "growth", "restart", "--smoke", "--output", str(output)]) == 0
    latency, growth, restart = json.loads(output.read_text())["scenarios"]
    for scenario in (latency, growth, restart):
        assert all(value > 0 for cell in scenario["cells"] for value in cell["values"])
    assert [chart["name"] for chart in latency["charts"]] == ["latency-median", "latency-p99"]
