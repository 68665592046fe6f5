"""Options are declared once: the reference, `help()` and constructors say what the declarations say."""

import pydoc
from typing import Any

import pytest

import folkmoot
from folkmoot.protocol.options import documented
from tests.configuration import PAGE, SECTIONS, page


def test_the_reference_is_made_of_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.configuration`"


@pytest.mark.parametrize("config", [config for _, config, _ in SECTIONS])
def test_every_option_says_what_it_means(config: Any) -> None:
    assert [each.name for each in documented(config) if not each.meaning.endswith(".")] == []


@pytest.mark.parametrize(
    "client", ["Producer", "AsyncProducer", "Consumer", "AsyncConsumer", "Admin"]
)
def test_help_shows_every_option_with_its_type_range_default_and_meaning(client: str) -> None:
    shown = pydoc.plain(pydoc.render_doc(getattr(folkmoot, client)))
    assert "request_timeout: number of seconds above 0; default" in shown
    assert "What brokers see, and what begins the names of members and threads." in shown
    assert "zookeeper=''" in shown
