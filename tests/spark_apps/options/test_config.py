"""Options as a user writes them, in the form in which Spark passes them on."""

import dataclasses

import pytest

from folkmoot.protocol.errors import ConfigError, InvalidName
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.options.config import BatchConfig, Bound, SinkConfig, StreamConfig
from tests.tree import ROOT

LEAST = {"zookeeper": "localhost:2181", "group": "delays", "subscribe": "flights"}
DEAD = {"valueformat": "avro", "ondecodeerror": "deadLetter"}
BATCH = {"zookeeper": "localhost:2181", "subscribe": "flights"}
FLIGHTS_0, FLIGHTS_1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def test_options_are_read_under_lower_cased_names() -> None:
    config = StreamConfig.of(
        LEAST
        | {
            "subscribe": " flights, weather ,flights",
            "startingoffsets": "latest",
            "maxoffsetspertrigger": "500",
            "maxbytespertrigger": "2MiB",
            "revoketimeout": "2.5",
            "maxtriggerdelay": "15m",
            "failondataloss": "False",
            "includeheaders": "TRUE",
        }
    )
    assert config.topics == ("flights", "weather")
    assert config.starting().default_offset == LATEST
    assert (config.maxOffsetsPerTrigger, config.maxBytesPerTrigger) == (500, 2 * 1024 * 1024)
    assert (config.revokeTimeout, config.maxTriggerDelay) == (2.5, 900.0)
    assert (config.failOnDataLoss, config.includeHeaders) == (False, True)


def test_starting_offsets_name_partitions_and_both_ends() -> None:
    config = StreamConfig.of(
        LEAST | {"startingOffsets": '{"flights": {"0": 23, "1": -2, "2": -1}}'}
    )
    offsets = {FLIGHTS_0: 23, FLIGHTS_1: EARLIEST, TopicPartition("flights", 2): LATEST}
    assert config.starting() == Bound(EARLIEST, offsets, lenient=False)


def test_a_time_counts_before_times_of_partitions_and_these_before_offsets() -> None:
    times = {"startingOffsetsByTimestamp": '{"flights": {"0": 7}}', "startingOffsets": "latest"}
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    found = StreamConfig.of(LEAST | times | lenient).starting()
    assert found == Bound(EARLIEST, times={FLIGHTS_0: 7}, lenient=True)
    found = StreamConfig.of(LEAST | times | {"startingTimestamp": "9"}).starting()
    assert found == Bound(EARLIEST, time=9, lenient=False)


def test_a_batch_ends_at_the_latest_or_where_it_is_told() -> None:
    assert BatchConfig.of(BATCH).ending() == Bound(LATEST)
    found = BatchConfig.of(BATCH | {"endingOffsets": '{"flights": {"0": 9}}'}).ending()
    assert found == Bound(LATEST, {FLIGHTS_0: 9})
    assert BatchConfig.of(BATCH | {"endingTimestamp": "9"}).ending() == Bound(LATEST, time=9)


def test_assigned_partitions_need_no_group_and_are_all_that_is_read() -> None:
    config = StreamConfig.of({"zookeeper": "z", "assign": '{"flights": [1, 0, 1]}'})
    assert (config.assigned, config.topics) == ((FLIGHTS_0, FLIGHTS_1), ("flights",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxoffsetpertrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'?"),
        ({"subscribepatern": "fl.*"}, "did you mean 'subscribePattern'?"),
        ({"zzzz": "5"}, "option 'zzzz' is not known to format folkmoot: known are zookeeper"),
        ({"group": " "}, "needs option 'group'"),
        ({"zookeeper": " "}, "needs option 'zookeeper'"),
        ({"subscribe": ","}, "names no topic"),
        ({"subscribe": " "}, "needs option 'subscribe'"),
        ({"assign": '{"a": [1]}'}, "'subscribe' and 'assign' exclude each other"),
        ({"subscribepattern": "a"}, "'subscribe' and 'subscribePattern' exclude each other"),
        (
            {"maxoffsetspertrigger": "many"},
            "maxOffsetsPerTrigger='many' is not allowed: use a whole",
        ),
        ({"maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger=0 is not allowed"),
        ({"maxrecordsperpartition": "0"}, "maxRecordsPerPartition=0 is not allowed"),
        ({"revoketimeout": "0"}, "revokeTimeout=0.0 is not allowed"),
        ({"revoketimeout": "nan"}, "revokeTimeout=nan is not allowed"),
        ({"maxprocessingtime": "1"}, "maxProcessingTime=1.0 is not allowed"),
        ({"startingoffsets": "middle"}, "use earliest, latest, or JSON"),
        ({"startingoffsets": '{"flights"'}, "'startingOffsets' is no JSON of the kind it takes"),
        ({"startingoffsets": '{"flights": {"0": "x"}}'}, "no JSON of the kind it takes"),
        ({"startingoffsets": '{"flights": {"0": -3}}'}, "at least -2"),
        ({"startingoffsets": '{"flights": {"a": 3}}'}, "use a partition's number"),
        ({"startingoffsets": '{"weather": {"0": 3}}'}, "names weather-0, which is not read"),
        ({"startingoffsetsbytimestamp": '{"flights": {"0": -1}}'}, "at least 0"),
        ({"startingoffsetsbytimestampstrategy": "never"}, "use 'error' or 'latest'"),
        ({"startingtimestamp": "yesterday"}, "startingTimestamp='yesterday' is not allowed"),
        ({"endingoffsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({"failondataloss": "maybe"}, "use true or false"),
        ({"assignor": "fair"}, "fair"),
        ({"kafka.bootstrap.servers": "b:1"}, "one of Kafka's, which format folkmoot does not read"),
        ({"kafka.group.id": "g"}, "use 'group'"),
        ({"groupIdPrefix": "g"}, "use 'group'"),
        ({"kafka.security.protocol": "SSL"}, "known are zookeeper"),
        ({"valueformat": "json"}, "valueFormat='json' is not allowed: use 'binary' or 'avro'"),
        ({"subject": "s"}, "'subject' means nothing without valueFormat=avro"),
        ({"valueformat": "avro", "ondecodeerror": "skip"}, "use 'fail', 'null' or 'deadLetter'"),
        ({"valueformat": "avro", "ondecodeerror": "deadLetter"}, "give both"),
        ({"valueformat": "avro", "deadlettertopic": "bad"}, "give both"),
        ({"deadlettertopic": "bad"}, "'deadLetterTopic' means nothing without valueFormat=avro"),
        (DEAD | {"deadlettertopic": "flights"}, "is 'flights', which is read itself"),
        (DEAD | {"deadlettertopic": "a/b"}, "topic name 'a/b'"),
        (
            DEAD
            | {"subscribe": "", "subscribepattern": "fl.*", "deadlettertopic": "flop"}
            | {"subject": "s"},
            "is 'flop', which is read itself",
        ),
        (
            DEAD
            | {"subscribe": "", "subscribepattern": "(", "deadlettertopic": "bad"}
            | {"subject": "s"},
            "is no regular expression",
        ),
        ({"valueformat": "avro", "readerschema": "newest"}, "use latest, an id, subject:version"),
        ({"valueformat": "avro", "subscribe": "a,b"}, "several topics need option 'subject'"),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(options: dict[str, str], said: str) -> None:
    with pytest.raises((ConfigError, InvalidName)) as refusal:
        StreamConfig.of(LEAST | options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueFormat": "json"}, "valueFormat='json' is not allowed: use 'binary' or 'avro'"),
        ({"subject": "s"}, "'subject' means nothing without valueFormat=avro"),
        ({"writerSchema": "7"}, "'writerSchema' means nothing without valueFormat=avro"),
        (
            {"valueFormat": "avro", "topic": ""},
            "need option 'subject', or 'writerSchema' with an id",
        ),
        ({"valueFormat": "avro", "topic": "", "writerSchema": "latest"}, "need option 'subject'"),
        ({"valueFormat": "avro", "topic": "", "writerSchema": '"int"'}, "need option 'subject'"),
        (
            {"valueFormat": "avro", "writerSchema": "newest"},
            "use columns, latest, an id, subject:ver",
        ),
    ],
)
def test_a_wrong_option_of_a_write_is_named_with_the_way_out(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        SinkConfig.of({"zookeeper": "z", "topic": "flights"} | options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_rows_that_say_their_topics_may_be_written_by_an_id_or_a_version() -> None:
    for said in ("7", "flights-value:3"):
        SinkConfig.of({"zookeeper": "z", "valueFormat": "avro", "writerSchema": said})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"assign": '{"flights": [-1]}'}, "'assign' is no JSON of the kind it takes"),
        ({"assign": '{"flights": []}'}, "'assign' names no partition"),
        ({"assign": '{"flights": [0]}', "group": "g"}, "leave 'group' out"),
        (
            {"assign": '{"flights": [0]}', "startingOffsets": '{"flights": {"1": 0}}'},
            "names flights-1, which is not read",
        ),
        ({"subscribePattern": "(", "group": "g"}, "is no regular expression"),
    ],
)
def test_a_wrong_way_to_name_partitions_is_told(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        StreamConfig.of({"zookeeper": "z"} | options)
    assert said in str(refusal.value)


def test_a_wrong_pattern_of_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no regular expression"):
        BatchConfig.of({"zookeeper": "z", "subscribePattern": "("})


def test_a_batch_that_would_end_where_logs_begin_is_refused() -> None:
    for ending in ("earliest", '{"flights": {"0": -2}}'):
        with pytest.raises(ConfigError, match="'endingOffsets' is the earliest"):
            BatchConfig.of(BATCH | {"endingOffsets": ending})


def test_a_batch_belongs_to_no_group() -> None:
    with pytest.raises(ConfigError, match="option 'group' is not known"):
        BatchConfig.of(BATCH | {"group": "g"})


def test_names_follow_the_rules_of_topics_and_groups() -> None:
    with pytest.raises(InvalidName, match="topic name 'a/b'"):
        StreamConfig.of(LEAST | {"subscribe": "a/b"})


def test_the_page_about_spark_names_every_option() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    options = {
        each.name
        for kind in (StreamConfig, BatchConfig, SinkConfig)
        for each in dataclasses.fields(kind)
    }
    assert not [name for name in sorted(options) if f"`{name}`" not in page]
