"""How fast flights go out, what must hold in the end, and what the command refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.console.demo import checks
from folkmoot.console.demo.checks import Consumed, Showed
from folkmoot.console.demo.producer import Pace
from folkmoot.console.demo.report import Screen
from folkmoot.console.demo.store import Work
from folkmoot.console.main import main
from folkmoot.protocol.records import TopicPartition

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
GOOD = Consumed(
    flights=30,
    expected={"UA": (20, 20, 55, 0), "AA": (10, 9, -4, 1)},
    carriers={"UA": (20, 20, 55, 0), "AA": (10, 9, -4, 1)},
    ends={P0: 30, P1: 0},
    committed={P0: 30},
    positions={P0: 30},
    members={"plain-1": Work(20, 0), "spark": Work(10, 3)},
)
SHOWED = Showed(spark="spark", gained=4, given_up=1, uncommitted=3)


def test_the_pace_is_even_and_ends_when_the_time_is_up() -> None:
    pace = Pace(1000, 40.0, 100.0)
    due = [pace.due(at, 1.0) for at in (100.0, 110.0, 120.0, 140.0, 200.0)]
    assert due == [0, 250, 500, 1000, 1000]


def test_beyond_the_limit_it_goes_slowly_but_on_until_the_limit_is_raised() -> None:
    pace = Pace(1000, 40.0, 0.0)
    assert pace.due(20.0, 0.5) == 500
    held = [pace.due(20.0 + seconds, 0.5) for seconds in range(1, 100)]
    assert held == sorted(held)
    assert held[9] - held[0] < 40
    assert held[-1] < 800
    assert pace.due(120.0, 0.9) < 850
    assert pace.due(200.0, 1.0) == 1000


def test_when_all_agrees_there_is_nothing_to_say() -> None:
    assert checks.of_results(GOOD) == []
    assert checks.of_story(GOOD, SHOWED) == []
    assert GOOD.repeated == 3


@pytest.mark.parametrize(
    ("consumed", "told"),
    [
        (replace(GOOD, carriers={**GOOD.carriers, "UA": (20, 20, 56, 0)}), "carrier UA"),
        (replace(GOOD, carriers={"UA": GOOD.carriers["UA"]}), "carrier AA: the pipeline has None"),
        (replace(GOOD, carriers={**GOOD.carriers, "B6": (1, 1, 1, 0)}), "carrier B6"),
        (replace(GOOD, ends={P0: 29}), "the topic holds 29 records, 30 were sent"),
        (replace(GOOD, committed={P0: 29}), "flights-0: committed offset 29, end offset 30"),
        (replace(GOOD, committed={}), "flights-0: committed offset 0, end offset 30"),
        (replace(GOOD, positions={P0: 31}), "flights-0: stored offset 31, end offset 30"),
        (replace(GOOD, members={"plain-1": Work(29, 0)}), "29 records were applied"),
    ],
)
def test_whatever_disagrees_in_the_results_is_told(consumed: Consumed, told: str) -> None:
    assert any(told in line for line in checks.of_results(consumed))


@pytest.mark.parametrize(
    ("showed", "told"),
    [
        (replace(SHOWED, gained=0), "spark gained no partition"),
        (replace(SHOWED, given_up=0), "spark gave up no partition"),
        (replace(SHOWED, spark="nobody"), "nobody processed nothing"),
        (replace(SHOWED, uncommitted=0), "nothing processed that was not committed"),
        (replace(SHOWED, uncommitted=4), "only 3 were delivered again"),
    ],
)
def test_whatever_was_not_shown_is_told(showed: Showed, told: str) -> None:
    assert any(told in line for line in checks.of_story(GOOD, showed))


def test_without_a_terminal_a_bar_is_a_line_at_every_tenth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen().bar("flights sent", 1000) as bar:
        for done in range(0, 1001, 7):
            bar.reach(done)
        bar.reach(1000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[-1].endswith("s    flights sent: 1,000 of 1,000")


def test_too_few_flights_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--flights", "12"]) == 2
    assert "folkmoot: --flights 12 is too few" in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "is not empty: name a new directory" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "file" / "below"
    directory.parent.touch()
    assert main(["demo", "--keep", str(directory)]) == 2
    said = f"folkmoot: --keep {directory}: Not a directory: use another directory\n"
    assert capsys.readouterr().err == said
