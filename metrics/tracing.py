"""Traces of OpenTelemetry in the headers of records, from a producer to its consumers.

Producers and consumers do not use this module, so it costs nothing without a call.
"""

from collections.abc import Iterable

from folkmoot.protocol.errors import MissingExtra, pip_command
from folkmoot.protocol.records import Headers, Record

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"traces need opentelemetry-api, which is not installed: {pip_command('server')}"
    ) from error

__all__ = ["extract", "inject"]


def inject(
    headers: Iterable[tuple[str, bytes | None]] = (), context: Context | None = None
) -> list[tuple[str, bytes | None]]:
    """A record's headers with those that carry a trace, by default that of the current span.

    OpenTelemetry's propagators write them, `traceparent` by default. Without a span nothing is added.
    Headers of an earlier trace are replaced.

    ```
    with tracer.start_as_current_span("send orders", kind=SpanKind.PRODUCER):
        producer.send("orders", value, headers=inject())
    ```
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    # A tracestate that was left beside another traceparent would speak of the wrong trace.
    former = propagate.get_global_textmap().fields if carrier else ()
    own_headers = [(name, value) for name, value in headers if name not in former]
    return [*own_headers, *((name, value.encode()) for name, value in carrier.items())]


def extract(record: Record, context: Context | None = None) -> Context:
    """Return the context in a record's headers, as a parent or for a link.

    ```
    with tracer.start_as_current_span("process orders", extract(record), kind=SpanKind.CONSUMER):
        handle(record)
    ```
    """
    return propagate.extract(record.headers, context, _FROM_HEADERS)


class _FromHeaders(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = [value for name, value in carrier if name == key and value is not None]
        return [value.decode(errors="replace") for value in found] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_FROM_HEADERS = _FromHeaders()
