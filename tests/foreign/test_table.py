"""The table of clients by call: docs/schemas.md shows the one that the tests hold."""

import re

from tests.foreign.environments import ENVIRONMENTS
from tests.foreign.table import CALLS, ROWS
from tests.tree import ROOT


def test_every_client_has_an_environment_and_every_program_its_calls() -> None:
    programs = [name for each in ENVIRONMENTS.values() for name in each.programs]
    assert sorted(programs) == sorted(CALLS)


def test_the_page_shows_which_client_has_which_calls() -> None:
    page = (ROOT / "docs" / "schemas.md").read_text()
    lines = [re.split(r" *\| *", line.strip("| ")) for line in page.splitlines() if "|" in line]
    head = next(line for line in lines if line[1:] and line[0] == "call")
    shown = {line[0]: line[1:] for line in lines}
    assert head[1:] == [f"`{name}`" for name in CALLS]
    for title, call in ROWS.items():
        assert shown[title] == ["yes" if call in each else "-" for each in CALLS.values()], title
