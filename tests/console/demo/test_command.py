"""What the command refuses."""

from pathlib import Path

import pytest

from folkmoot.console.main import main


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
