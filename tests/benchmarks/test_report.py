"""Results as JSON, tables, charts, and in the docs."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import bench_latency, report
from benchmarks.__main__ import LATEST
from benchmarks.environment import Unavailable, peer_python
from benchmarks.results import Cell, Report, Results, Target
from benchmarks.throughput_summary import CONFLUENT_OUT, LISTS, SEND, add

CASE = "100 B, 4,000 keys, 12 partitions, zstd"


def results() -> Results:
    found = Results(name="throughput", title="Throughput", seconds=1.0, when="today", commit="abc")
    found.notes.append("A sentence.")
    for who, values in ((SEND, [2e6, 1.9e6, 2.1e6]), (LISTS, [5e6]), (CONFLUENT_OUT, [6e5])):
        facts = {"client CPU": 0.5, "server CPU": 0.1, "client memory": 1e8, "compression": 3.0}
        cell = Cell(
            case=f"produce: {CASE}", contender=who, unit="records/s", values=values, facts=facts
        )
        found.cells.append(cell)
    add(found, CASE)
    return found


def a_report() -> Report:
    return Report(
        when="2026-01-01 00:00 UTC",
        command="python -m benchmarks",
        machine={"cores": "2"},
        versions={"Apache Kafka 4.3.1": {"Java": "17"}},
        missing={"redis": "Redis Streams: no program redis-server"},
        scenarios=[results()],
    )


def test_a_report_is_read_back_from_its_json_as_it_was(tmp_path: Path) -> None:
    a_report().write(tmp_path / "latest.json")
    again = Report.read(tmp_path / "latest.json")
    again.write(tmp_path / "again.json")
    assert (tmp_path / "latest.json").read_text() == (tmp_path / "again.json").read_text()
    cell = again.scenarios[0].find(f"produce: {CASE}", SEND)
    assert cell is not None
    assert cell.median == 2e6


def test_a_line_of_the_targets_has_the_figure_its_bound_and_the_ratio_to_the_rival() -> None:
    head, first, *rest = report.target_rows([results()])
    assert len(head) == len(first)
    assert first == [
        f"produce, {SEND}, 4,000 keys",
        "2.00 M records/s",
        "1.90 M – 2.10 M",
        "≥ 1.80 M records/s",
        f"{CONFLUENT_OUT}: 600 k",
        "3.33 ×",
        "≥ 3 ×",
        "met",
    ]
    assert rest[0][0] == f"produce, {LISTS}"
    assert report.cost(results().targets[0]) == "CPU 0.50 + 0.10 s/M, 3.00:1"


@pytest.mark.parametrize(
    ("figure", "beside", "verdict"),
    [
        (5.0, 2.0, "met"),
        (3.9, 1.0, "not met"),
        (5.0, 3.0, "not met"),
        (5.0, None, "open"),
        (3.9, None, "not met"),
    ],
)
def test_a_target_is_met_when_the_figure_and_the_ratio_both_reach_their_bounds(
    figure: float, beside: float | None, verdict: str
) -> None:
    target = Target(text="", figure=figure, unit="s", wanted=4.0, beside=beside, times=2.0)
    assert target.verdict == verdict
    assert target.ratio == (None if beside is None else figure / beside)


def test_what_should_be_low_is_met_by_less() -> None:
    for figure, verdict in ((4.0, "met"), (9.0, "not met")):
        lower = Target(text="p99", figure=figure, unit="ms", better="lower", beside=8.0, times=1.0)
        assert lower.verdict == verdict
        assert replace(lower, beside=None, times=None, wanted=5.0).verdict == verdict
        (_, row) = report.target_rows([Results(name="", title="", targets=[lower])])
        assert row[-2:] == ["≤ 1 ×", verdict]


def test_without_a_peer_there_is_no_ratio_to_it() -> None:
    alone = Results(name="throughput", title="Throughput")
    alone.cells = [cell for cell in results().cells if cell.contender != CONFLUENT_OUT]
    add(alone, CASE)
    alone.targets = [target for target in alone.targets if target.times is not None]
    assert [target.ratio for target in alone.targets] == [None, None]
    for row in report.target_rows([alone])[1:]:
        assert row[4:6] == ["", ""]
        assert row[-1] == "open"


def test_what_a_record_costs_client_and_servers_is_judged_whoever_else_is_there() -> None:
    judged = {t.text: t for t in results().targets if t.unit == "s/M records"}
    assert {text: (round(t.figure, 3), t.verdict) for text, t in judged.items()} == {
        "produce, Folkmoot send(): CPU of client and servers": (0.6, "met"),
        "produce, Folkmoot send_batch(), lists: CPU of client and servers": (0.6, "not met"),
    }


def test_with_lz4_more_is_asked_of_those_who_read_columns() -> None:
    found = Results(name="throughput", title="Throughput")
    for codec, factor in (("zstd", 10), ("lz4", 12)):
        case = f"consume: {CASE.replace('zstd', codec)}"
        for who, rate in (
            ("Folkmoot arrow()", factor * 2e6),
            ("confluent-kafka consume(10000)", 2e6),
        ):
            facts = {"client CPU": 0.1, "server CPU": 0.1}
            found.cells.append(
                Cell(case=case, contender=who, unit="records/s", values=[rate], facts=facts)
            )
    add(found, CASE)
    assert [(t.text, t.ratio, t.times, t.verdict) for t in found.targets] == [
        ("consume, Folkmoot arrow()", 10.0, 8.0, "met"),
        ("consume, Folkmoot arrow(), lz4", 12.0, 14.0, "not met"),
    ]


def test_a_latency_of_ours_that_never_came_is_not_met_even_if_kafkas_did_not_either() -> None:
    found = Results(name="latency", title="Latency")
    for name in ("Folkmoot", "Kafka (confluent-kafka)"):
        facts = {bench_latency.P99: 20_000.0, bench_latency.LATE: 1.0}
        cell = Cell(case="c", contender=name, unit="ms", values=[20_000.0], facts=facts)
        found.cells.append(cell)
    bench_latency._judge(found)
    assert [target.verdict for target in found.targets] == ["not met", "not met"]
    assert "waited" in found.targets[0].text


def test_durations_are_told_in_minutes() -> None:
    assert [report.duration(seconds) for seconds in (5.4, 59.7, 754.6)] == [
        "5 s",
        "1 min 00 s",
        "12 min 35 s",
    ]


def test_the_page_gets_tables_between_its_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    marks = "<!-- results: {} -->\nold\n<!-- end -->\n"
    page.write_text("Before.\n" + marks.format("throughput") + "After.\n" + marks.format("other"))
    a_report().write(tmp_path / "latest.json")
    assert report.write_docs(tmp_path / "latest.json", [page]) == 0
    text = page.read_text()
    assert text.startswith(
        "Before.\n<!-- results: throughput -->\nMeasured today, commit abc, in 1 s.\n\n!["
    )
    assert "| Folkmoot send() | 2.00 M | 1.90 M – 2.10 M | 0.50 | 0.10 | 3 |" in text
    assert "\nAfter.\n<!-- results: other -->\nold\n<!-- end -->\n" in text
    assert report.write_docs(tmp_path / "latest.json", [page]) == 0
    assert page.read_text() == text


def test_saving_keeps_the_scenarios_that_were_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    first = a_report()
    first.scenarios.append(Results(name="latency", title="Latency"))
    report.save(first, path)
    report.save(a_report(), path)
    assert [each.name for each in Report.read(path).scenarios] == ["throughput", "latency"]
    report.save(replace(a_report(), versions={"Folkmoot": {"Python": "3.11"}}), path)
    assert list(Report.read(path).versions) == ["Apache Kafka 4.3.1", "Folkmoot"]


def test_results_that_cannot_be_read_do_not_cost_a_new_run_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "latest.json"
    path.write_text('{"scenarios": [{"name": "old"}]}')
    report.save(a_report(), path)
    assert [each.name for each in Report.read(path).scenarios] == ["throughput"]
    assert "replaced" in capsys.readouterr().err


@pytest.mark.slow
def test_charts_are_drawn_beside_the_json_and_name_everything(tmp_path: Path) -> None:
    try:
        peer_python()
    except Unavailable as reason:
        pytest.skip(str(reason))
    path = tmp_path / "latest.json"
    found = Report.read(LATEST)
    found.write(path)
    report.draw(path)
    for chart in (chart for each in found.scenarios for chart in each.charts):
        root = ElementTree.parse(tmp_path / f"{chart.name}.svg")
        texts = [element.text or "" for element in root.iter()]
        names = [series.name for series in chart.series if series.name]
        assert all(name in texts for name in (*chart.groups, *names))
