"""A trace goes on from who sends to who reads."""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Tracer, get_current_span

from folkmoot import Consumer, Producer, Record
from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.coordination import topics
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.metrics.tracing import extract, inject
from folkmoot.protocol.errors import MissingExtra, pip_command
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider.get_tracer("tests")
    provider.shutdown()


def a_record(*headers: tuple[str, bytes | None]) -> Record:
    return Record("t", 0, 0, 0, None, b"value", headers)


def test_a_span_of_the_reader_is_a_child_of_the_senders(
    tmp_path: Path, tracer: Tracer, spans: InMemorySpanExporter
) -> None:
    ensemble = MemoryZooKeeper()
    config = BrokerConfig(broker_id=1, data=tmp_path / "b", zookeeper="in.memory:1")
    with Broker(config, ensemble.connect):
        execute(ensemble.connect(), topics.create("t", 1, [1]))
        with Producer(zookeeper=ensemble.connect) as producer:
            with tracer.start_as_current_span("send", kind=SpanKind.PRODUCER):
                producer.send("t", b"value", headers=inject([("mine", b"kept")]))
            producer.flush(10)
        with Consumer(zookeeper=ensemble.connect) as consumer:
            consumer.assign([("t", 0)])
            (record,) = eventually(lambda: consumer.poll(0.1))
            with tracer.start_as_current_span("process", extract(record), kind=SpanKind.CONSUMER):
                pass
    sent, processed = spans.get_finished_spans()
    assert processed.parent is not None
    assert sent.context is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.parent.trace_id == sent.context.trace_id
    assert record.header("mine") == b"kept"


def test_without_a_span_nothing_is_added() -> None:
    assert inject([("a", b"1"), ("a", None)]) == [("a", b"1"), ("a", None)]
    assert not get_current_span(extract(a_record(("a", b"1")))).get_span_context().is_valid


def test_a_record_that_is_sent_on_carries_the_newer_trace(tracer: Tracer) -> None:
    with tracer.start_as_current_span("first"):
        first = inject([("a", b"1")])
    with tracer.start_as_current_span("second") as second:
        headers = inject([*first, ("tracestate", b"vendor=first")])
    assert [name for name, _ in headers] == ["a", "traceparent"]
    found = get_current_span(extract(a_record(*headers))).get_span_context()
    assert found.span_id == second.get_span_context().span_id


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"00-zz-zz-01", None])
def test_a_header_that_is_no_trace_is_passed_over(value: bytes | None) -> None:
    context = extract(a_record(("traceparent", value)))
    assert not get_current_span(context).get_span_context().is_valid


def test_without_the_library_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "folkmoot.metrics.tracing")
    with pytest.raises(MissingExtra, match=re.escape(pip_command("server"))):
        import_module("folkmoot.metrics.tracing")
