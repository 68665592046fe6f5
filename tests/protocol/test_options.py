"""Options become a config, or an error that names the one that is wrong."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta

from folkmoot.admin.config import AdminConfig
from folkmoot.consumers.client.async_consumer import AsyncConsumerOptions
from folkmoot.consumers.client.consumer import ConsumerOptions
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.producers.config import ProducerConfig
from folkmoot.protocol.errors import ConfigError, InvalidName
from folkmoot.protocol.options import (
    Bytes,
    BytesPerSecond,
    Ratio,
    Seconds,
    build,
    check_options,
    configured,
    parse,
    shown,
    unknown_option,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    size: Annotated[int, Meta(ge=2, le=1_000_000)] = 4
    linger: Annotated[Seconds, Meta(ge=0)] = 0.5
    wait: Annotated[Seconds, Meta(gt=0)] | None = None
    most: Annotated[int | None, Meta(le=9)] = None
    part: Ratio = 0.5
    room: Bytes = 1
    pace: BytesPerSecond | None = None
    how: str | None = None
    ends: Literal["early", "late", 0] = "early"
    quick: bool = False
    call: Callable[[int], int] | None = None
    other: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_options(self)


def test_a_config_is_made_of_its_options() -> None:
    made = build(Config, {"name": "a", "size": np.int64(2), "linger": 3, "wait": None})
    assert made == Config(name="a", size=2, linger=3.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option name=… is missing"),
        ({"nam": "a"}, "option 'nam' is not known: did you mean 'name'?"),
        (
            {"name": "a", "zzz": 1},
            "option 'zzz' is not known: known are name, size, linger, wait, most, part, room, "
            "pace, how, ends, quick, call, other",
        ),
    ],
)
def test_unknown_and_missing_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Config, options)
    assert str(caught.value) == said


WHOLE = "use a whole number from 2 to 1000000"


@pytest.mark.parametrize(
    ("option", "allowed", "refused", "said"),
    [
        ("size", [2, 1_000_000], [1, 1_000_001, 2.5, "3", True, None, 2.0], WHOLE),
        ("linger", [0, 0.0, 1e9], [-0.001, "1", None], "use a number of seconds of at least 0"),
        ("wait", [None, 1e-9, 5], [0, -1.0, True], "use a number of seconds above 0, or None"),
        ("most", [None, 9, -5], [10, 2.5, -(2**63)], "use a whole number of at most 9, or None"),
        ("part", [0, 1, 0.5], [-0.1, 1.1], "use a number from 0 to 1"),
        (
            "linger",
            [],
            [float("nan"), float("inf"), -float("inf"), 10**19],
            "use a number of seconds of at least 0",
        ),
    ],
)
def test_numbers_have_a_type_and_a_range(
    option: str, allowed: list[Any], refused: list[Any], said: str
) -> None:
    for value in allowed:
        assert getattr(build(Config, {"name": "a", option: value}), option) == value
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            build(Config, {"name": "a", option: value})
        assert str(caught.value) == f"{option}={value!r} is not allowed: {said}"


@pytest.mark.parametrize(
    ("option", "allowed", "refused", "said"),
    [
        ("how", ["", "a", None], [5, b"a", True, ["a"]], "use a text or None"),
        ("ends", ["late", 0], ["LATE", 1, False, None, []], "use 'early', 'late' or 0"),
        ("quick", [True, False], ["no", 0, 1, None], "use True or False"),
        ("call", [abs, None], ["abs", 5], "use a function or None"),
        ("other", ["a", [5], 5], [], ""),
    ],
)
def test_texts_words_and_functions_are_what_they_are_declared_as(
    option: str, allowed: list[Any], refused: list[Any], said: str
) -> None:
    for value in allowed:
        assert getattr(build(Config, {"name": "a", option: value}), option) == value
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            build(Config, {"name": "a", option: value})
        assert str(caught.value) == f"{option}={value!r} is not allowed: {said}"


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (ConsumerOptions, {"zookeeper": "host:1"}),
        (AsyncConsumerOptions, {"zookeeper": "host:1"}),
        (ProducerConfig, {"zookeeper": "host:1"}),
        (AdminConfig, {"zookeeper": "host:1"}),
        (LogConfig, {}),
    ],
)
def test_whatever_is_given_as_an_option_is_taken_or_refused_by_a_typed_error(
    config: Any, needed: dict[str, Any]
) -> None:
    odd = [
        5,
        -1,
        "x",
        "\ud800",
        "",
        [],
        [5],
        {"a": 1},
        object(),
        b"b",
        True,
        None,
        (1, 2),
        abs,
        1e99,
    ]
    odd += [10**400]
    for field in dataclasses.fields(config):
        for value in odd:
            with suppress(ConfigError, InvalidName):
                build(config, {**needed, field.name: value})


def test_texts_become_what_the_fields_are() -> None:
    texts = {"name": "none", "size": "7", "wait": " None ", "linger": "1e2", "how": "NONE"}
    found = parse(Config, texts)
    assert found == {"name": "none", "size": 7, "wait": None, "linger": 100.0, "how": None}


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("size", "7.5", f"size='7.5' is not allowed: {WHOLE}"),
        ("size", "1", f"size=1 is not allowed: {WHOLE}"),
        ("size", "none", f"size='none' is not allowed: {WHOLE}"),
        ("most", "x", "most='x' is not allowed: use a whole number of at most 9, or None"),
        (
            "wait",
            "a week",
            "wait='a week' is not allowed: use a number of seconds above 0, or None (such as 90s, 7d)",
        ),
        (
            "pace",
            "fast",
            "pace='fast' is not allowed: use a whole number of bytes per second, or None "
            "(such as 500MB, 1GiB)",
        ),
        ("part", "much", "part='much' is not allowed: use a number from 0 to 1"),
        ("siez", "1", "option 'siez' is not known: did you mean 'size'?"),
    ],
)
def test_texts_that_are_not_what_the_fields_are_get_refused(
    option: str, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Config, {option: text})
    assert str(caught.value) == said


def test_options_given_by_position_are_refused() -> None:
    class Client:
        @configured(Config)
        def __init__(self, config: Config) -> None:
            self.config = config

    assert Client(name="a").config == Config(name="a")
    make: Any = Client
    with pytest.raises(TypeError, match="Client takes options by their names"):
        make("a", name="b")


def test_lengths_of_time_and_sizes_may_have_their_units() -> None:
    assert parse(Config, {"linger": "7d", "wait": "PT1M"}) == {"linger": 604_800.0, "wait": 60.0}
    assert parse(Config, {"room": "1GiB", "pace": "1kB"}) == {"room": 2**30, "pace": 1000}
    for option, text in (("size", "1GiB"), ("part", "7d"), ("linger", "1GiB")):
        with pytest.raises(ConfigError, match="is not allowed"):
            parse(Config, {option: text})


def test_a_value_is_shown_in_full_up_to_80_letters() -> None:
    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == f"'{'x' * 79}…"


def test_an_error_for_an_unknown_option_needs_no_config() -> None:
    assert str(unknown_option("seed", ["speed"])) == (
        "option 'seed' is not known: did you mean 'speed'?"
    )
