"""What the README shows is true: its commands exist and work, its programs run as printed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import folkmoot
from folkmoot.console.main import COMMANDS, cli
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.processes import FOLKMOOT, EmbeddedCluster
from folkmoot.protocol.options import declarations
from folkmoot.spark_apps.options.config import StreamConfig
from tests.console.cluster import parsed
from tests.pages import blocks_of, words_of
from tests.recording import PORT, STEPS
from tests.tree import ROOT, project_files

README = (ROOT / "README.md").read_text()
FIRST_SCREEN = 40

BLOCKS = blocks_of(ROOT / "README.md")
COMMANDS_SHOWN = words_of(BLOCKS)
PROGRAMS = [block.text for block in BLOCKS if block.language == "python"]


def folkmoot_commands() -> list[list[str]]:
    return [words for program, *words in COMMANDS_SHOWN if program == "folkmoot"]


def run(words: list[str], zookeeper: str, directory: Path) -> str:
    done = subprocess.run(
        words,
        env={**os.environ, ENVIRONMENT: zookeeper},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # The summary of a group goes to standard error, so that the table can be piped.
    assert (done.returncode, re.sub(r"(group \w+ is|note:) .*\n", "", done.stderr)) == (0, "")
    return done.stdout


def test_the_first_screen_says_what_it_is_and_shows_the_commands() -> None:
    screen = README.splitlines()[:FIRST_SCREEN]
    assert "replicated message log with consumer groups" in screen[2]
    assert {"$ make env", f"$ folkmoot dev --port {PORT}"} <= set(screen)


def test_what_it_does_not_do_has_a_table() -> None:
    (table,) = re.findall(r"## When not to use it\n\n(.*?)\n\n", README, re.DOTALL)
    for missing in ("Kafka's protocol", "transactions", "authentication", "encryption", "Linux"):
        assert missing in table


def test_it_is_called_the_same_everywhere_and_replicates_by_default() -> None:
    """Other tests hold that three replicas are the default of `folkmoot dev`, and what they are for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    home = (ROOT / "docs" / "index.md").read_text()
    for text in (folkmoot.__doc__, project["description"], cli.help, README, home):
        assert text is not None
        assert "replicated message log with consumer groups for Python and Spark" in text
    words = ["topic", "create", "t", "--replicas", "3", "--zookeeper", "host:1"]
    assert parsed(*words)["replicas"] == 3


def test_every_page_of_the_docs_is_pointed_to_and_the_environment_is_activated() -> None:
    """Those in folders by their folder; the site's first page is the site's."""
    for page in project_files():
        if page.is_relative_to(ROOT / "docs") and page.suffix == ".md" and page.stem != "index":
            within = page.relative_to(ROOT / "docs").parts
            assert f"`docs/{within[0]}{'/' if len(within) > 1 else ''}`" in README
    assert ". .venv/bin/activate" in README


def test_every_target_of_make_that_is_shown_exists() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = {words[1] for words in COMMANDS_SHOWN if words[0] == "make"}
    shown |= set(re.findall(r"`make (\w+)`", README))
    assert shown
    assert shown <= set(targets)


def test_every_command_that_is_shown_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "host:1")
    assert folkmoot_commands()
    for words in folkmoot_commands():
        assert parsed(*words) is not None
    for name in re.findall(r"`folkmoot (\w+)", README):
        assert name in COMMANDS


def test_the_programs_have_a_few_lines_each() -> None:
    assert [len(block.splitlines()) for block in PROGRAMS] == [5, 5, 6]


def test_the_options_of_the_spark_application_exist() -> None:
    options = re.findall(r'option\("(\w+)"', PROGRAMS[2])
    assert options
    assert set(options) <= set(declarations(StreamConfig))


def test_the_drawing_of_a_terminal_shows_commands_that_exist() -> None:
    drawing = (ROOT / "docs" / "assets" / "recording.svg").read_text()
    for name in re.findall(r"[$|] folkmoot (\w+)", drawing):
        assert name in COMMANDS
    assert drawing.count('class="command"') == len(STEPS)


def test_programs_and_commands_run_as_printed(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    zookeeper = shared_cluster.zookeeper
    create, shown, part, described = folkmoot_commands()[1:5]
    assert run([*FOLKMOOT, *create], zookeeper, tmp_path).startswith("created topic orders")
    produce, consume = (block.replace(f"localhost:{PORT}", zookeeper) for block in PROGRAMS[:2])
    run([sys.executable, "-c", produce], zookeeper, tmp_path)

    consumer = subprocess.Popen(
        [sys.executable, "-c", consume], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with consumer:
        assert consumer.stdout is not None
        lines = [consumer.stdout.readline().split() for _ in range(10)]
        consumer.terminate()
    keys = [b"table %d" % (number % 4) for number in range(10)]
    expected = sorted(f"{keys[number]!r} b'coffee {number}'" for number in range(10))
    assert sorted(" ".join(line[:4]) for line in lines) == expected

    assert run([*FOLKMOOT, *shown], zookeeper, tmp_path).count("\n") == 10
    records = run([*FOLKMOOT, *part], zookeeper, tmp_path).splitlines()
    assert [json.loads(line)["offset"] for line in records] == list(range(2, 2 + len(records)))
    table = run([*FOLKMOOT, *described], zookeeper, tmp_path)
    assert table.split()[:5] == ["topic", "partition", "owner", "host", "pid"]
