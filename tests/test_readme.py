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
from tests.console.cluster import parsed
from tests.pages import blocks_of, words_of
from tests.tree import ROOT, project_files

README = (ROOT / "README.md").read_text()
FIRST_SCREEN = 40
SNIPPET_LINES = 12
UNTIL_STOPPED = ("dev",)


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
    # What sums a group up goes there, so that the table can be piped.
    assert (done.returncode, re.sub(r"group \w+ is .*\n", "", done.stderr)) == (0, "")
    return done.stdout


def test_the_first_screen_says_what_it_is_and_is_not_and_shows_the_two_commands() -> None:
    screen = README.splitlines()[:FIRST_SCREEN]
    assert "replicated, partitioned, append-only log" in screen[2]
    assert {"$ make demo", "$ make test"} <= set(screen)
    (limits,) = (line for line in screen if line.startswith("**What it does not do**"))
    for missing in ("Kafka's protocol", "transactions", "authentication", "encryption", "Linux"):
        assert missing in limits


def test_it_is_called_the_same_everywhere_and_replicates_as_it_says() -> None:
    """That three replicas are the default of `folkmoot dev`, and what they are for, other tests hold."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for said in (folkmoot.__doc__, project["description"], cli.help, README):
        assert said is not None
        assert "replicated, partitioned" in said
        assert "log with consumer groups" in said
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


def test_the_programs_are_twelve_lines_each() -> None:
    assert [len(block.splitlines()) for block in PROGRAMS] == [SNIPPET_LINES] * 2


def test_programs_and_commands_run_as_printed(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    zookeeper = shared_cluster.zookeeper
    first, *later = [words for words in folkmoot_commands() if words[0] not in UNTIL_STOPPED]
    assert run([*FOLKMOOT, *first], zookeeper, tmp_path).startswith("created topic drinks")

    produced, consumed = (
        run([sys.executable, "-c", block], zookeeper, tmp_path) for block in PROGRAMS
    )
    assert re.fullmatch(r"the last one is in partition \d at offset \d+\n", produced)
    orders = [line.partition(" (")[0] for line in consumed.splitlines()]
    coffees = [f"table {number % 4}: coffee {number}" for number in range(10)]
    assert sorted(orders) == sorted([*coffees, "table 3: the bill, please"])
    assert orders.index("table 3: the bill, please") > orders.index("table 3: coffee 7")

    shown, part, described = (run([*FOLKMOOT, *words], zookeeper, tmp_path) for words in later)
    assert shown.count("\n") == 11
    assert [json.loads(line)["offset"] for line in part.splitlines()] == [2, 3, 4]
    assert described.split()[:5] == ["topic", "partition", "owner", "host", "pid"]
    lags = [row.split()[8] for row in described.splitlines()[1:]]
    assert lags == ["0", "0", "0"]
