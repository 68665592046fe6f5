"""What the throughput comes to: the targets that are met or not, and the charts."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.results import Cell, Chart, Results, series_of

CONFLUENT_OUT: Final = "confluent-kafka produce()"
CONFLUENT_IN: Final = "confluent-kafka consume(10000)"
JAVA_OUT: Final = "Kafka's ProducerPerformance (Java)"
JAVA_IN: Final = "Kafka's ConsumerPerformance (Java)"
SEND: Final = "Folkmoot send()"
LISTS: Final = "Folkmoot send_batch(), lists"
ARROW: Final = "Folkmoot send_batch(), Arrow"
RECORDS: Final = "Folkmoot, record by record"
COLUMNS: Final = "Folkmoot batches(), columns"
ARROW_IN: Final = "Folkmoot arrow()"
MILLION: Final = 1e6

# What is done, ours, what each record is beside the main case, at least so many times as confluent-kafka
# does, at least so many a second.
_LINES: Final = (
    ("produce", SEND, "4,000 keys", 3.0, 1.8e6),
    ("produce", SEND, "all keys different", 3.0, 1.8e6),
    ("produce", SEND, "4,000 keys, with one header", 3.0, 1e6),
    ("produce", SEND, "4,000 keys, with on_delivery", 3.0, 1e6),
    ("produce", SEND, "4,000 keys, with partition=", 3.0, 1e6),
    ("produce", LISTS, "", 6.0, 4e6),
    ("produce", ARROW, "", 6.0, 4e6),
    ("consume", RECORDS, "", 3.5, 2.2e6),
    ("consume", COLUMNS, "", 8.0, 10e6),
    ("consume", ARROW_IN, "", 8.0, 10e6),
)
# With lz4, which is for topics that are read often.
_LZ4_LINES: Final = ((COLUMNS, 14.0, 15e6), (ARROW_IN, 14.0, 15e6))
# CPU seconds per million records, of the client and the servers together.
_CPU_LINES: Final = (
    ("produce", SEND, 0.75),
    ("produce", LISTS, 0.40),
    ("produce", ARROW, 0.40),
    ("consume", RECORDS, 0.30),
)
# Ahead of Kafka's own tools, with the codec that they are fastest with.
_JAVA_LINES: Final = (
    ("produce", SEND, JAVA_OUT),
    ("produce", LISTS, JAVA_OUT),
    ("consume", RECORDS, JAVA_IN),
    ("consume", COLUMNS, JAVA_IN),
)


def add(results: Results, case: str) -> None:
    """Targets and charts, as far as their contenders were there. `case` is the main one."""
    for verb, ours, kind, times, rate in _LINES:
        case_name = f"{verb}: {case.replace('4,000 keys', kind) if kind else case}"
        theirs = results.find(case_name, CONFLUENT_OUT if verb == "produce" else CONFLUENT_IN)
        text = f"{verb}, {ours}{f', {kind}' if kind else ''}"
        results.judge(text, results.find(case_name, ours), theirs, wanted=rate, times=times)
    for ours, times, rate in _LZ4_LINES:
        case_name = f"consume: {case.replace('zstd', 'lz4')}"
        theirs = results.find(case_name, CONFLUENT_IN)
        text = f"consume, {ours}, lz4"
        results.judge(text, results.find(case_name, ours), theirs, wanted=rate, times=times)
    for verb, ours, most in _CPU_LINES:
        if (our_cell := results.find(f"{verb}: {case}", ours)) is not None:
            cpu = our_cell.facts["client CPU"] + our_cell.facts["server CPU"]
            text = f"{verb}, {ours}: CPU of client and servers"
            results.limit(text, cpu, most, "s/M records")
    for verb, ours, tool in _JAVA_LINES:
        if (best := _fastest(results, tool)) is not None:
            text = f"{verb}, {ours}, beside Kafka's own tool at its best codec ({_codec(best)})"
            results.judge(text, results.find(f"{verb}: {case}", ours), best, times=1.0)
    if (best := _fastest(results, CONFLUENT_OUT)) is not None:
        figure = f"{best.median / MILLION:.2f} M records/s"
        results.notes.append(
            f"confluent-kafka produced fastest with codec {_codec(best)}: {figure}."
        )
    results.charts += [
        _rates(results, "produce", "Produced", case),
        _rates(results, "consume", "Consumed", case),
        *_by_case(results),
        _cpu(results, "produce", "producing", case),
        _cpu(results, "consume", "consuming", case),
    ]


def _fastest(results: Results, contender: str) -> Cell | None:
    """Of a contender's cells with the main records and partitions, whatever the codec."""
    cells = [cell for cell in results.cells if cell.contender == contender]
    case_name = [cell for cell in cells if "100 B, 4,000 keys, 12 partitions" in cell.case]
    return max(case_name, key=lambda cell: cell.median, default=None)


def _codec(cell: Cell) -> str:
    return cell.case.rpartition(", ")[2]


def _rates(results: Results, verb: str, title: str, case: str) -> Chart:
    cells = [cell for cell in results.cells if cell.case == f"{verb}: {case}"]
    return Chart(
        name=f"throughput-{verb}",
        title=f"{title}: {case}",
        kind="bars",
        unit="million records/s",
        groups=[cell.contender for cell in cells],
        series=[series_of("", cells, spread=True, scale=MILLION)],
    )


def _by_case(results: Results) -> Sequence[Chart]:
    """One group of bars a case, for those that take part in most."""
    cases = [c for c in dict.fromkeys(cell.case for cell in results.cells) if c[:7] == "produce"]
    if len(cases) < 2:
        return []
    chart = Chart(
        name="throughput-cases",
        title="Produced: other records, partitions and codecs",
        kind="bars",
        unit="million records/s",
        groups=[each.partition(": ")[2] for each in cases],
        series=results.series(cases, (SEND, LISTS, CONFLUENT_OUT), spread=True, scale=MILLION),
    )
    return [chart]


def _cpu(results: Results, verb: str, title: str, case: str) -> Chart:
    """CPU seconds for a million records, of client and servers: Folkmoot's and Kafka's ways."""
    cells = [
        cell
        for cell in results.cells
        if cell.case == f"{verb}: {case}" and not cell.contender.startswith(("Redis", "NATS"))
    ]
    return Chart(
        name=f"throughput-cpu-{verb}",
        title=f"CPU time, {title} (Redis and NATS: see the table)",
        kind="bars",
        unit="seconds per million records",
        groups=[cell.contender for cell in cells],
        series=[
            series_of(fact_name, cells, partial(_fact, fact_name))
            for fact_name in ("client CPU", "server CPU")
        ],
    )


def _fact(name: str, cell: Cell) -> float:
    return cell.facts[name]
