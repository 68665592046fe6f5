"""Options of commands that keep running: where metrics are served, and how the log is written."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.options.declared import config_options
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    from folkmoot.metrics.pages import MetricsSource

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD_FIELDS: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


_Decorator = Callable[[Callable[..., int]], Callable[..., int]]


def metrics_options(default_port: int | None = None) -> _Decorator:
    """`--metrics-port` and `--metrics-host`, as a broker has them."""
    own: dict[str, Any] = {} if default_port is None else {"metrics_port": default_port}
    return config_options(BrokerConfig, "metrics_port", "metrics_host", **own)


logging_options = config_options(BrokerConfig, "log_format", "log_level")
"""`--log-format` and `--log-level`, as a broker has them."""


@contextmanager
def serve_pages(
    host: str, port: int | None, make_source: "Callable[[], MetricsSource]", output: TextIO
) -> Iterator[None]:
    """Serve the pages of what `make_source` makes while the block runs, and print where they are.

    Without a port nothing is made or served. Raises MissingExtra, AddressTaken.
    """
    if port is None:
        yield
        return
    from folkmoot.metrics.pages import serve_metrics

    with serve_metrics(host, port, make_source()) as address:
        print(f"metrics at http://{address}/metrics", file=output, flush=True)
        yield


def log_to_stderr(log_format: str, log_level: str) -> None:
    """Write the process's log, a line or an object for each event; of libraries only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("folkmoot").setLevel(log_level.upper())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, `exception` if there is one, and what
    was given as `extra`.

    Fields to search by are made of what the message is made of: `event` is its text before names and
    numbers are put in, `topic` and `partition` say which one it names, `error` is an error's kind.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= _fields(record)
        fields |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the arguments of a record that users search by; the first of each kind."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    found: dict[str, Any] = {"event": str(record.msg)} if arguments else {}
    for each in (*arguments, record.exc_info[1] if record.exc_info else None):
        if isinstance(each, TopicPartition):
            found = {"topic": each.topic, "partition": each.partition} | found
        elif isinstance(each, BaseException):
            found.setdefault("error", type(each).__name__)
    return found
