"""Tables: aligned text, JSON, and rich on a terminal."""

import json
import sys
from collections.abc import Iterator

import pytest

from folkmoot.console import tables
from folkmoot.console.tables import WIDTHS_OF, stream

COLUMNS = ("topic", "partitions", "replicas")
ROWS = [("flights", 12, [1, 2]), ("t", 3, [])]


def test_a_table_in_a_pipe_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(COLUMNS, ROWS)
    assert capsys.readouterr().out == (
        "topic    partitions  replicas\nflights          12  1,2\nt                 3  -\n"
    )


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(COLUMNS, [])
    assert capsys.readouterr().out == "topic  partitions  replicas\n"


def test_json_has_one_object_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(COLUMNS, ROWS, "json")
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "flights", "partitions": 12, "replicas": [1, 2]},
        {"topic": "t", "partitions": 3, "replicas": []},
    ]


def test_names_in_json_have_no_spaces_and_no_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(("in sync", "below min-in-sync"), [(1, 2)], "json")
    assert json.loads(capsys.readouterr().out) == [{"in_sync": 1, "below_min_in_sync": 2}]


def test_cells_that_are_nothing_or_pairs_are_readable() -> None:
    text = tables.plain(("a", "b"), [(None, {"client": "h:1", "x": None}), (1, {})])
    assert text.splitlines() == ["a  b", "-  client=h:1 x=-", "1  -"]


def test_on_a_terminal_rich_draws_it_and_takes_no_cell_for_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.show(("topic",), [("[red]t[/red]",)])
    assert "[red]t[/red]" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_long_listing_is_printed_as_it_comes(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def rows() -> Iterator[tuple[int, str]]:
        for number in range(3 * WIDTHS_OF):
            if number == 2 * WIDTHS_OF:
                seen.append(capsys.readouterr().out)
            yield number, "x" * (number // WIDTHS_OF)

    stream(("number", "text"), rows(), output)
    (before,), after = seen, capsys.readouterr().out
    assert before.count("\n") >= 2 * WIDTHS_OF
    if output == "json":
        found = json.loads(before + after)
        assert [each["number"] for each in found] == list(range(3 * WIDTHS_OF))
    else:
        assert [int(line.split()[0]) for line in (before + after).splitlines()[1:]] == [
            *range(3 * WIDTHS_OF)
        ]


def test_a_listing_without_rows_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    stream(("a",), iter(()), "json")
    assert json.loads(capsys.readouterr().out) == []
