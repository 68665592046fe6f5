"""The options of the source, from what Spark hands over: texts under lower-cased names."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.names import check_name

_T = TypeVar("_T", int, float)

FORMAT = "folkmoot"


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """What `.option(…)` says; durations in seconds. Where Spark's Kafka source has one, its name."""

    zookeeper: str
    """Connect string with its chroot."""
    group: str
    """The group to be a member of."""
    topics: tuple[str, ...]
    """Option `subscribe`: the topics whose partitions the group divides, separated by commas."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where to start in a partition in which the group has not committed anything."""
    max_offsets_per_trigger: int = 100_000
    """How many records a micro-batch holds at most: it bounds what comes twice after a crash."""
    hand_over: float = 30.0
    """How long this member may take to give a partition up: longer than a micro-batch takes."""
    fail_on_data_loss: bool = True
    """End the query when records that were to be read are gone; else skip them with a warning."""
    client_id: str = "spark"
    """Begins the member's name, and is what brokers see."""
    listener: str = "client"
    """Which of the brokers' listeners to connect to, in the driver and in executors."""

    def __post_init__(self) -> None:
        check_name("group", self.group)
        check_name("client id", self.client_id)
        if not self.topics:
            raise ConfigError("option 'subscribe' names no topic")
        for topic in self.topics:
            check_name("topic", topic)
        if self.starting_offsets not in ("earliest", "latest"):
            raise ConfigError(
                f"option 'startingOffsets' is {self.starting_offsets!r}: use earliest or latest"
            )
        if self.max_offsets_per_trigger < 1:
            raise ConfigError("option 'maxOffsetsPerTrigger' must be at least 1")
        if not self.hand_over > 0:
            raise ConfigError("option 'handOver' must be more than 0 seconds")


def parse(options: Mapping[str, str]) -> SourceConfig:
    """The options as a config; names in any case. Raises ConfigError, InvalidName."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _OPTIONS}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f": did you mean {known[near[0]]!r}?" if near else ""
            raise ConfigError(f"option {name!r} is not known to format {FORMAT}{hint}")
    for name in ("zookeeper", "group", "subscribe"):
        if not given.get(name, "").strip():
            raise ConfigError(f"format {FORMAT} needs option {name!r}")
    fields: dict[str, Any] = {}
    for name, (field, read) in _OPTIONS.items():
        if name.lower() in given:
            fields[field] = read(name, given[name.lower()].strip())
    return SourceConfig(**fields)


def _text(_: str, value: str) -> str:
    return value


def _names(_: str, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"option {name!r} is {value!r}: use true or false")
    return value.lower() == "true"


def _number(kind: type[_T], what: str) -> Callable[[str, str], _T]:
    def read(name: str, value: str) -> _T:
        try:
            return kind(value)
        except ValueError:
            raise ConfigError(f"option {name!r} is {value!r}: use {what}") from None

    return read


_OPTIONS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "zookeeper": ("zookeeper", _text),
    "group": ("group", _text),
    "subscribe": ("topics", _names),
    "startingOffsets": ("starting_offsets", _text),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _number(int, "a whole number")),
    "handOver": ("hand_over", _number(float, "a number of seconds")),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "clientId": ("client_id", _text),
    "listener": ("listener", _text),
}
