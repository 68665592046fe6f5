"""A broker's configuration: flags over the environment over a file over the defaults."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import build, parse

PREFIX: Final = "FOLKMOOT_"
LOG: Final = "log"

# Variables of the environment, besides FOLKMOOT_LOG_<OPTION>.
_ENVIRONMENT: Final = [field.name for field in fields(BrokerConfig) if field.name != LOG]

_REQUIRED: Final = ("broker_id", "data", "zookeeper")


def broker_config(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> BrokerConfig:
    """A broker's configuration. Raises ConfigError, which names the option and its source.

    `file` is TOML: the options of BrokerConfig, and those for all topics in a table `[log]`. Flags
    have the same names, those for topics as `log.<option>`; None is a flag not given.
    """
    options: dict[str, Any] = {}
    log: dict[str, Any] = {}
    for source in (_read_file(file), _read_environment(environment), flags):
        for name, value in source.items():
            if name.startswith(f"{LOG}."):
                log[name.removeprefix(f"{LOG}.")] = value
            elif value is not None:
                options[name] = value
    texts = {name: value for name, value in options.items() if isinstance(value, str)}
    options |= parse(BrokerConfig, texts)
    if "data" in texts:
        options["data"] = Path(texts["data"])
    log |= parse(LogConfig, {name: value for name, value in log.items() if isinstance(value, str)})
    for name in _REQUIRED:
        if options.get(name) is None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} is missing: give it, set {PREFIX}{name.upper()}, or write {name} into --config"
            )
    return build(BrokerConfig, {**options, LOG: build(LogConfig, log)})


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}: name a file that exists") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None
    log = table.pop(LOG, {})
    if not isinstance(log, dict):
        raise ConfigError(f"--config {path}: {LOG} is a table: write [{LOG}]")
    listeners = table.get("listeners", [])
    if not isinstance(listeners, list) or not all(isinstance(each, str) for each in listeners):
        raise ConfigError(f"--config {path}: listeners is a list of texts")
    if listeners:
        table["listeners"] = ",".join(listeners)
    return table | {f"{LOG}.{name}": value for name, value in log.items()}


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in _ENVIRONMENT:
        text = environment.get(PREFIX + name.upper())
        if text:
            options[name] = text
    start = f"{PREFIX}{LOG.upper()}_"
    for variable, text in environment.items():
        # FOLKMOOT_LOG_FORMAT is the broker's own.
        if variable.startswith(start) and variable.removeprefix(PREFIX).lower() not in _ENVIRONMENT:
            options[f"{LOG}.{variable.removeprefix(start).lower()}"] = text
    return options


def flag(word: str) -> tuple[str, str]:
    """An option given as `--set log.OPTION=VALUE`. Raises ConfigError."""
    name, equals, value = word.partition("=")
    if not equals or not name.startswith(f"{LOG}."):
        raise ConfigError(f"--set {word} is not understood: write {LOG}.OPTION=VALUE")
    return name, value
