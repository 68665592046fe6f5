"""Options are declared once: the reference and constructors say what the declarations say."""

import pydoc
from typing import Any

import pytest

import folkmoot
from folkmoot.console.options.declared import read_documentation
from tests.configuration import PAGE, SECTIONS, page


def test_the_reference_is_made_of_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.configuration`"


@pytest.mark.parametrize("config", [config for _, config, _ in SECTIONS])
def test_every_option_says_what_it_means(config: Any) -> None:
    assert [
        name for name, each in read_documentation(config).items() if each.meaning[-1:] != "."
    ] == []


@pytest.mark.parametrize(
    "client", ["Producer", "AsyncProducer", "Consumer", "AsyncConsumer", "Admin", "AsyncAdmin"]
)
def test_help_shows_every_option_with_its_default_and_names_the_reference(client: str) -> None:
    shown = pydoc.plain(pydoc.render_doc(getattr(folkmoot, client)))
    assert "zookeeper=''" in shown
    assert "Options: docs/configuration.md." in shown
