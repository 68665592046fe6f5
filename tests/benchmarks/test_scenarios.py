"""What scenarios decide before they measure: how many records, how large a log."""

import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from benchmarks import __main__ as command
from benchmarks import bench_compression, bench_restart, bench_schemas
from benchmarks.bench_throughput import Case, _count
from benchmarks.flight_columns import deserializer
from benchmarks.harness import FULL, Context, Sample
from benchmarks.records import RecordSets
from benchmarks.results import Report, Results
from folkmoot.protocol.compression import Codec
from folkmoot.schemas.columns.serializer import ColumnEncoder


def context(tmp_path: Path) -> Context:
    return Context({}, FULL, Results(name="", title=""), tmp_path)


def test_the_number_of_records_takes_the_wanted_time(tmp_path: Path) -> None:
    full = _count(context(tmp_path), Case(), "kafka")
    assert full == 800_000 * FULL.seconds
    assert _count(context(tmp_path), Case(records="large"), "kafka") == full // 10


@pytest.mark.parametrize(("free", "size"), [(25, 10), (24, 9), (10, 4)])
def test_the_large_log_is_smaller_if_the_disk_has_little_space(
    free: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 1e9))
    assert bench_restart._size_that_fits(context(tmp_path)) == size * 1e9


def test_codecs_are_measured_on_bodies_of_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"compress": 0.4, "decompress": 0.1}
    whole = bench_compression._seconds
    monkeypatch.setattr(
        bench_compression, "_seconds", lambda work: whole(work) and seconds[work.__name__]
    )
    records = RecordSets(tmp_path, 1).get("small", 5_000)
    bodies = bench_compression.bodies_of(records.path, records.count)
    rows = [msgspec.msgpack.decode(body) for body in bodies]
    assert all(len(body) <= 1.1 * bench_compression.BATCH_BYTES for body in bodies)
    assert sum(len(value[1]) for _, value, *_ in rows) == 5_000 * 100 + 5 * len(rows)
    sample = bench_compression.measure_codec(Codec.ZSTD, 1, bodies, records.count)
    assert sample.value == pytest.approx(80)  # s/M records
    assert sample.facts["to decompress, CPU s/M records"] == pytest.approx(20)
    assert 2 < sample.facts["compression"] < 5
    assert 20 < sample.facts["bytes a record"] < 50


def test_a_target_without_anything_beside_it_can_be_written_and_read_again(tmp_path: Path) -> None:
    results = Results(name="restart", title="")
    results.limit("memory of an idle broker", 54e6, 250e6, "bytes")
    report = Report(when="", command="", machine={}, versions={}, scenarios=[results])
    report.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == report


def test_a_contender_that_fails_is_left_out_and_named_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    def broken() -> Sample:
        raise TimeoutError("no answer\nat all")

    def works() -> Sample:
        return Sample(value=2.0, facts={})

    with context(tmp_path / "work") as running:
        (cell,) = running.alternate("a case", "s", {"broken": broken, "works": works}, 2)
    assert (cell.contender, cell.values) == ("works", [2.0, 2.0])
    assert running.results.failed == ["a case, broken: TimeoutError: no answer"] * 3  # warm-up, too


def test_a_run_in_which_something_failed_fails_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(running: Context) -> None:
        running.attempt("a part", lambda: 1 / 0)
        running.results.notes.append("Kept.")

    monkeypatch.setattr(import_module("benchmarks.bench_limits"), "run", run)
    monkeypatch.setattr(command, "BENCH", tmp_path / "bench")
    output = tmp_path / "found.json"
    assert command.main(["limits", "--peers", "none", "--output", str(output)]) == 1
    (found,) = Report.read(output).scenarios
    assert found.failed == ["a part: ZeroDivisionError: division by zero"]
    assert found.notes == ["Kept."]
    assert "failed: a part" in capsys.readouterr().out


def test_schemas_are_measured_on_flights_of_which_columns_and_single_values_are_the_same() -> None:
    some = bench_schemas.Flights.read(300)
    columns = ColumnEncoder(some.text, bench_schemas.ID)
    arrow = deserializer(some.text)
    assert columns(arrow(some.values)).to_pylist() == some.values
    for measure in (
        *(
            bench_schemas.decode_columns,
            bench_schemas.decode_columns_with_fastavro,
            bench_schemas.encode_columns,
        ),
        *(bench_schemas.decode_values, bench_schemas.decode_values_with_fastavro),
        *(bench_schemas.encode_values, bench_schemas.encode_values_with_fastavro),
    ):
        assert measure(some).value > 0
