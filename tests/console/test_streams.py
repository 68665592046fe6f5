"""Standard streams that are closed, full, or cannot take every letter."""

import os
import subprocess
from pathlib import Path

import pytest

from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.producers.producer import Producer
from tests.brokers.batches import a_batch, append, make_log
from tests.console.cluster import FOLKMOOT, Shell, without_waits


def redirected(how: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command whose streams a shell has redirected, as in `>&-`."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {how}', "sh", *FOLKMOOT, *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=60,
    )
    done.stderr = without_waits(done.stderr)
    return done


@pytest.fixture
def data(tmp_path: Path) -> str:
    log = make_log(tmp_path)
    append(log, a_batch(b"x"))
    log.close()
    return str(tmp_path)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("how", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_an_output_that_cannot_be_written_is_one_line_and_exit_code_1(
    data: str, how: str, why: str, unbuffered: str
) -> None:
    for words in (("log", "verify", data), ("log", "dump", data), ("--help",)):
        done = redirected(how, *words, PYTHONUNBUFFERED=unbuffered)
        said = f"folkmoot: standard output cannot be written: {why}\n"
        assert (done.returncode, done.stderr) == (1, said)


def test_what_says_nothing_needs_no_output(tmp_path: Path) -> None:
    done = redirected(">&-", "log", "verify", str(tmp_path))
    assert done.returncode == 2
    assert "has no segments" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_place_for_errors_none_is_shown_among_the_output(tmp_path: Path) -> None:
    done = redirected("2>&-", "log", "verify", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_closed_input_is_an_empty_one(shell: Shell, tmp_path: Path) -> None:
    cluster = {ENVIRONMENT: shell.zookeeper}
    done = redirected("<&-", "produce", shell.topic, **cluster)
    assert (done.returncode, done.stderr) == (0, f"produced 0 records to {shell.topic}\n")
    done = redirected("<&-", "group", "import", shell.group, "-", **cluster)
    assert done.returncode == 2
    assert "names no partition" in done.stderr
    done = redirected("<&-", "topic", "delete", shell.topic, **cluster)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [">&-", ">/dev/full"])
def test_a_member_that_cannot_show_its_records_commits_none_of_them(shell: Shell, how: str) -> None:
    shell.done("produce", shell.topic, "--partition", "0", stdin="1\n2\n")
    words = ("consume", shell.topic, "--group", shell.group, "-o", "raw")
    done = redirected(how, *words, **{ENVIRONMENT: shell.zookeeper})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert shell.done(*words).split() == ["1", "2"]


def test_letters_that_the_output_does_not_have_are_escapes(shell: Shell) -> None:
    with Producer(zookeeper=shell.zookeeper) as producer:
        producer.send(shell.topic, "grüße ☃".encode(), partition=0)
    for encoding in ("ascii", "ascii:surrogateescape"):
        done = redirected(
            *("", "consume", shell.topic),
            **{ENVIRONMENT: shell.zookeeper, "PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "0@0 gr\\xfc\\xdfe \\u2603\n"


def test_an_answer_that_is_no_text_confirms_nothing(shell: Shell) -> None:
    child = subprocess.run(
        [*FOLKMOOT, "topic", "delete", shell.topic],
        input=b"\xff\n",
        capture_output=True,
        check=False,
        env={**os.environ, ENVIRONMENT: shell.zookeeper, "PYTHONIOENCODING": "utf-8"},
        timeout=60,
    )
    assert child.returncode == 4
    assert b"Traceback" not in child.stderr
