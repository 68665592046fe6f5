"""Options as a user writes them, in the form in which Spark passes them on."""

import pytest

from folkmoot.protocol.errors import ConfigError, InvalidName
from folkmoot.spark_apps.config import parse

LEAST = {"zookeeper": "localhost:2181", "group": "delays", "subscribe": "flights"}


def test_options_are_read_under_lower_cased_names() -> None:
    config = parse(
        LEAST
        | {
            "subscribe": " flights, weather ,flights",
            "startingoffsets": "latest",
            "maxoffsetspertrigger": "500",
            "handover": "2.5",
            "failondataloss": "False",
        }
    )
    assert config.topics == ("flights", "weather")
    assert (config.starting_offsets, config.max_offsets_per_trigger) == ("latest", 500)
    assert (config.hand_over, config.fail_on_data_loss) == (2.5, False)


def test_a_batch_has_a_limit_even_if_nobody_asked_for_one() -> None:
    assert parse(LEAST).max_offsets_per_trigger == 100_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxoffsetpertrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'?"),
        ({"subscribepattern": "fl.*"}, "did you mean 'subscribe'?"),
        ({"zzz": "5"}, "option 'zzz' is not known to format folkmoot"),
        ({"group": " "}, "needs option 'group'"),
        ({"subscribe": ","}, "names no topic"),
        ({"maxoffsetspertrigger": "many"}, "'maxOffsetsPerTrigger' is 'many': use a whole number"),
        ({"maxoffsetspertrigger": "0"}, "at least 1"),
        ({"handover": "0"}, "'handOver' must be more than 0"),
        ({"handover": "nan"}, "'handOver' must be more than 0"),
        ({"startingoffsets": "middle"}, "use earliest or latest"),
        ({"failondataloss": "maybe"}, "use true or false"),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as refusal:
        parse(LEAST | options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_names_follow_the_rules_of_topics_and_groups() -> None:
    with pytest.raises(InvalidName, match="topic name 'a/b'"):
        parse(LEAST | {"subscribe": "a/b"})
