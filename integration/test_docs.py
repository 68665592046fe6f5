"""The how-to page on containers is true: its blocks run as printed, as those of other pages do."""

from pathlib import Path

import pytest

from tests.pages import follow
from tests.tree import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_the_page_on_containers_can_be_followed_block_by_block(tmp_path: Path) -> None:
    follow(ROOT / "docs" / "howto" / "containers.md", tmp_path, {})
