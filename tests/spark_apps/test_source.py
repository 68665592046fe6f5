"""The classes that Spark sees, without a Spark."""

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from folkmoot.consumers.fetch.range_reader import OffsetRange
from folkmoot.protocol.errors import ConfigError
from folkmoot.spark_apps.options.columns import COLUMNS, columns
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.source import MAX_ROWS, FolkmootDataSource, FolkmootStreamReader
from folkmoot.spark_apps.tasks.planning import Task
from pyspark_folkmoot import DefaultSource

OPTIONS = {"zookeeper": "localhost:2181", "group": "g", "subscribe": "flights"}
LOGGED = {"g": "g", "p": {"flights/0": [3, 7]}, "t": {"flights": "id"}, "v": 2}


class FakeMember:
    """Writes down what the reader asks of it."""

    is_draining = False

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def latest(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        self.calls.append(("latest", start, limit))
        return LOGGED

    def tasks(self, end: dict[str, Any]) -> list[Task]:
        self.calls.append(("tasks", end))
        return [(OffsetRange("flights", 0, "id", 3, 7, None, ("b:1",)),)]

    def leave(self, timeout: float) -> None:
        self.calls.append(("leave",))


@pytest.fixture
def reader() -> FolkmootStreamReader:
    made = FolkmootDataSource(OPTIONS).streamReader(COLUMNS)
    assert isinstance(made, FolkmootStreamReader)
    return made


def test_spark_finds_the_source_under_its_name_without_loading_what_only_drivers_need() -> None:
    assert DefaultSource is FolkmootDataSource
    assert DefaultSource.name() == "folkmoot"
    program = (
        "import sys, pyspark_folkmoot;"
        "print(sorted({'kazoo', 'numpy', 'pandas', 'pyarrow', 'zmq'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_option_is_told_when_the_schema_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="did you mean 'revokeTimeout'"):
        FolkmootDataSource(OPTIONS | {"revoketimeouts": "3"}).schema()
    batch = {name: OPTIONS[name] for name in ("zookeeper", "subscribe")}
    with pytest.raises(ConfigError, match="did you mean 'endingOffsets'"):
        FolkmootDataSource(batch | {"endingoffset": "3"}).schema()


def test_nothing_is_joined_before_the_engine_wants_offsets(reader: FolkmootStreamReader) -> None:
    empty = {"g": "g", "n": 0, "p": {}, "s": {}, "t": {}, "v": 2}
    assert reader.initialOffset() == reader.initialOffset() == empty
    assert reader.getDefaultReadLimit() == ReadMaxRows(MAX_ROWS)
    assert reader.reportLatestOffset() is None
    reader.stop()


def test_the_engines_calls_reach_the_member_with_the_limit_in_rows(
    reader: FolkmootStreamReader,
) -> None:
    reader._member = member = FakeMember()  # type: ignore[assignment]
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(5)) is LOGGED
    assert reader.latestOffset(start, ReadAllAvailable()) is LOGGED
    (partition,) = reader.partitions({"whatever": 1}, LOGGED)
    assert isinstance(partition, InputPartition)
    assert partition.value[0].first == 3
    reader.commit(LOGGED)
    reader.stop()
    reader.stop()
    assert member.calls == [
        ("latest", start, 5),
        ("latest", start, None),
        ("tasks", LOGGED),
        ("leave",),
    ]


def test_a_reader_travels_to_executors_without_what_it_has_open() -> None:
    config = StreamConfig(zookeeper="z", group="g", subscribe="t")
    reader = FolkmootStreamReader(config, ("value",))
    reader._member = FakeMember()  # type: ignore[assignment]
    travelled = pickle.loads(pickle.dumps(reader))
    kept = {"_config": config, "_names": ("value",), "_reader_schema": None, "_member": None}
    assert travelled.__dict__ == kept


def test_headers_are_a_column_if_they_are_asked_for() -> None:
    assert FolkmootDataSource(OPTIONS).schema() == COLUMNS
    with_headers = FolkmootDataSource(OPTIONS | {"includeheaders": "true"}).schema()
    assert with_headers == columns(True)
    assert with_headers.names == [*COLUMNS.names, "headers"]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("delay", IntegerType(), "there is no column 'delay': choose from key, value, topic"),
        ("value", StringType(), "column 'value' is binary, not string: cast it after it was read"),
        ("headers", StringType(), "option includeHeaders=true"),
    ],
)
def test_a_schema_of_other_columns_is_refused(name: str, kind: DataType, said: str) -> None:
    given = StructType().add("key", BinaryType()).add(name, kind)
    with pytest.raises(ConfigError, match=said):
        FolkmootDataSource(OPTIONS).streamReader(given)
    with pytest.raises(ConfigError, match=said):
        FolkmootDataSource({n: v for n, v in OPTIONS.items() if n != "group"}).reader(given)
