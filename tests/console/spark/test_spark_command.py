"""What `folkmoot spark` hands to spark-submit, and refuses."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from folkmoot.console.main import main
from folkmoot.console.running.java import JavaNotFound
from folkmoot.console.spark import spark_environment
from folkmoot.console.spark.apps import EXAMPLES
from folkmoot.protocol.errors import pip_command
from tests.console.cluster import completed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Spark whose programs write down what they are called with."""
    programs = tmp_path / "home" / "bin"
    programs.mkdir(parents=True)
    for name in ("spark-submit", "spark-class"):
        program = programs / name
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"told = {{'words': sys.argv[1:], 'python': os.environ['PYSPARK_PYTHON']}}\n"
            f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps(told))\n"
            "sys.exit(9)\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(programs.parent))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark_environment, "spark_java_home", lambda java, directory: directory)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that says why not."""
    assert main(["spark", *words]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_words_become_names_of_examples_and_nothing_behind_one() -> None:
    assert completed("spark", "run", "re") == ["replay"]
    assert completed("spark", "run", "replay", "") == []


def test_an_application_is_submitted_here_with_this_python_and_ends_as_it_does(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-another-environment")
    assert main(["spark", "run", "--conf", "a=b", "replay", "--to", "now", "--conf", "mine"]) == 9
    told = json.loads((home / "told").read_text())
    assert told["python"] == sys.executable
    words = told["words"]
    assert words[:2] == ["--master", "local[*]"]
    assert words[-5:] == [str(EXAMPLES / "replay.py"), "--to", "now", "--conf", "mine"]
    assert words[-7:-5] == ["--conf", "a=b"]  # behind ours, so that it counts before them


def test_a_cluster_gets_the_python_and_the_settings_that_it_was_given(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = home / "mine.py"
    app.touch()
    monkeypatch.setenv("PYSPARK_PYTHON", "packed/bin/python")
    words = ["--master", "spark://far:7077", "--conf", "spark.archives=env.tgz#packed", str(app)]
    assert main(["spark", "run", *words]) == 9
    told = json.loads((home / "told").read_text())
    assert told["python"] == "packed/bin/python"
    assert told["words"][:2] == ["--master", "spark://far:7077"]
    assert told["words"][-3:] == ["--conf", "spark.archives=env.tgz#packed", str(app)]
    assert not any("127.0.0.1" in word for word in told["words"])


def test_an_unknown_app_is_told_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean replay?" in refused(capsys, "run", "replai")
    said = refused(capsys, "run", "something")
    assert "known are enrichment, " in said
    assert "windowed_counts. Or give the path of a .py" in said
    assert "there is no file mine.py" in refused(capsys, "run", "mine.py")


def test_without_pyspark_or_java_one_line_says_what_installs_it(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java() -> None:
        raise JavaNotFound(f"no Java: {pip_command('embedded')}")

    monkeypatch.setattr(spark_environment, "find_java", no_java)
    assert "no Java" in refused(capsys, "cluster", "--data", str(home))
    monkeypatch.setattr(spark_environment, "find_spec", lambda name: None)
    assert pip_command("spark") in refused(capsys, "run", "replay")


def test_a_home_without_spark_is_told(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert f"SPARK_HOME is {home}" in refused(capsys, "run", "replay")


def test_a_cluster_takes_no_port_that_is_in_use_and_no_directory_that_is_a_file(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(capsys, "cluster", "--data", str(home), "--port", port)
    assert f"port {port} for Spark's master is in use" in said
    (home / "file").touch()
    assert "--data" in refused(capsys, "cluster", "--data", str(home / "file"))


def test_a_master_that_does_not_come_up_is_told_and_nothing_is_left(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """The program of the home in place of Spark's ends at once."""
    said = refused(capsys, "cluster", "--data", str(home / "data"), "--port", "0")
    assert "Spark's master ended with exit code 9" in said
    assert os.listdir(home / "data") == ["master.log"]


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "--workers", "0"],
        ["run", "--mastr", "a", "replay"],
        ["list"],
        ["submit", "--master", "local", "replay"],
    ],
)
def test_wrong_usage_is_told(words: list[str]) -> None:
    assert main(["spark", *words]) == 2
