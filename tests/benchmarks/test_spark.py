"""The scenario of Spark, as far as it needs no Spark."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import bench_spark
from benchmarks.bench_spark import IDLE, KAFKA, LATENCY, LEFT, NOTHING, OURS, READER
from benchmarks.measuring import cpu_below, cpu_seconds, forget_peaks, own_cpu, peak_resident
from benchmarks.records import RecordSets
from benchmarks.results import Cell, Results
from benchmarks.spark_sides import FILES, _encode_flights, as_parquet, flights_as_parquet
from folkmoot.console.demo import flights
from folkmoot.schemas.columns.deserializer import ColumnDeserializer

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"
IDLE_REPORT: dict[str, Any] = {
    "cpu_of": {"reader": 0.05, "worker": 0.0, "JVM": 0.2, "application": 0.05},
    "seconds": 10.0,
}


def test_processes_are_counted_by_what_their_command_lines_say() -> None:
    kinds = {"busy": "process_time() < 0.2", "absent": "no such thing"}
    before = cpu_below(kinds)
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = cpu_below(kinds)
        peaks = peak_resident(kinds)
        assert used["busy"] == pytest.approx(cpu_seconds(child.pid), abs=0.05)
    assert used["busy"] >= 0.2
    assert used["absent"] == before["busy"] == 0.0
    assert used["application"] >= before["application"] > 0.0
    assert peaks.keys() == {"busy", "application"}
    assert min(peaks.values()) > 1_000_000
    assert cpu_below(kinds)["application"] - cpu_below(kinds, own_cpu)["application"] > 0.1


def test_what_a_process_had_in_ram_before_does_not_count_for_what_it_does_next() -> None:
    kinds = {"large": "bytearray(1 << 26)"}
    program = "large = bytearray(1 << 26); del large; print('done', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = peak_resident(kinds)["large"]
        forget_peaks(kinds)
        assert before - peak_resident(kinds)["large"] > 50_000_000


def test_flights_are_the_same_bytes_for_both_sides_and_spark_can_read_them() -> None:
    class Known:
        def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
            assert id == 7
            return flights.schema()

    keys, values = _encode_flights(7, 50)
    rows = list(flights.read(flights.find_archive(), 50))
    decoded = ColumnDeserializer(Known(), flights.schema())(values)
    assert decoded.num_rows == len(keys) == 50
    assert decoded.column("tailnum").to_pylist() == [each.value["tailnum"] for each in rows]


def test_what_is_written_to_a_topic_lies_in_as_many_files_as_there_are_to_be(
    tmp_path: Path,
) -> None:
    records = RecordSets(tmp_path, 1).get("small", 1_001)
    folder = as_parquet(records.path, 1_001, tmp_path / "rows")
    found = [pq.read_table(each) for each in sorted(folder.iterdir())]
    assert len(found) == FILES
    assert sum(each.num_rows for each in found) == 1_001


def test_flights_lie_in_files_with_a_column_for_each_field(tmp_path: Path) -> None:
    folder = flights_as_parquet(50, tmp_path / "rows")
    table = pa.concat_tables([pq.read_table(each) for each in sorted(folder.iterdir())])
    assert table.schema.names == [
        *(each["name"] for each in json.loads(flights.schema())["fields"]),
        "_key",
    ]
    rows = list(flights.read(flights.find_archive(), 50))
    assert sorted(filter(None, table.column("_key").to_pylist())) == sorted(
        r.key for r in rows if r.key
    )


def test_what_an_idle_source_costs_is_told_apart_from_what_any_source_in_python_costs() -> None:
    results = Results(name="spark", title="")
    for name, share in ((OURS, 0.5), (NOTHING, 0.25), (KAFKA, 0.0)):
        facts = {READER: share}
        results.cells.append(
            Cell(case=IDLE, contender=name, unit="% of a core", values=[2.0], facts=facts)
        )
    bench_spark._judge(results)
    (target,) = results.targets
    assert (target.figure, target.verdict) == (0.25, "met")


def test_a_query_that_went_on_gives_a_sample_of_each_case() -> None:
    lags = {"p50": 1.4e9, "p99": 2.0e9, "max": 2.5e9}
    ended = {"first_row": 1.5, "lags": lags, "resident": {"reader": 10, "worker": 20}, "left": 0.1}
    by_case = bench_spark._samples(IDLE_REPORT, {"begun": 1e9}, ended)
    assert by_case[IDLE].value == pytest.approx(3.0)
    assert by_case[IDLE].facts == pytest.approx({READER: 0.5, "JVM %": 2.0})
    assert by_case[LATENCY].value == pytest.approx(400.0)
    assert by_case[LATENCY].facts["p99 ms"] == pytest.approx(1000.0)
    assert by_case[LEFT].value == 0.1
    nothing = bench_spark._samples(IDLE_REPORT, {}, {"first_row": 1.0, "lags": {}})
    assert list(nothing) == [bench_spark.FIRST_ROW, IDLE]
