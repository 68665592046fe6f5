"""What docs/operations.md shows is true: its commands are understood, its configuration is one."""

import re
import shlex
from pathlib import Path

import pytest

from folkmoot.console import exit_codes
from folkmoot.console.main import COMMANDS
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.settings import broker_config
from tests.console.cluster import parsed
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
NUMBERS = {"N": "1", "P": "0", "BROKER": "1", "PARTITION=OFFSET": "0=1"}


def commands() -> list[list[str]]:
    """All `folkmoot …` of the page, without those that are but a beginning."""
    lines = [shlex.split(found) for found in re.findall(r"`folkmoot ([^`]+)`", PAGE)]
    return [[NUMBERS.get(word, word) for word in words] for words in lines if "…" not in words[-1]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_is_understood(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "host:1")
    assert words[0] in COMMANDS
    assert parsed(*words) is not None


def test_the_configuration_of_the_page_is_a_brokers(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "broker.toml"
    file.write_text(block)
    config = broker_config(file, {}, {})
    assert (config.broker_id, config.default_replicas, config.rack) == (1, 3, "host-1")
    assert config.listeners[0].advertised(9190) == "host-1:9190"


def test_the_table_of_exit_codes_has_them_all() -> None:
    table = PAGE[PAGE.index("## Exit codes") :]
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert shown == exit_codes.MEANINGS.keys() | {137}
    assert set(exit_codes.EXIT_CODES.values()) <= exit_codes.MEANINGS.keys()
