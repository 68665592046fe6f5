"""Options of commands that keep running: where metrics are served, and how the log is written."""

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.options import add_declared
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    from folkmoot.metrics.pages import Watched

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def add_metrics(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """`--metrics-port` and `--metrics-host`, as a broker has them."""
    own = {} if default is None else {"metrics_port": default}
    add_declared(parser, BrokerConfig, "metrics_port", "metrics_host", **own)


def add_logging(parser: argparse.ArgumentParser) -> None:
    """`--log-format` and `--log-level`, as a broker has them."""
    add_declared(parser, BrokerConfig, "log_format", "log_level")


@contextmanager
def served(host: str, port: int, watched: "Watched", said: TextIO) -> Iterator[None]:
    """The pages as long as the block lasts; where they are is said. Raises MissingExtra, AddressTaken."""
    from folkmoot.metrics.pages import serve_metrics

    with serve_metrics(host, port, watched) as address:
        print(f"metrics at http://{address}/metrics", file=said, flush=True)
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
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= _fields(record)
        said |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a record's arguments are, of those that somebody searches by; the first of each kind."""
    given = record.args if isinstance(record.args, tuple) else ()
    found: dict[str, Any] = {"event": str(record.msg)} if given else {}
    for each in (*given, record.exc_info[1] if record.exc_info else None):
        if isinstance(each, TopicPartition):
            found = {"topic": each.topic, "partition": each.partition} | found
        elif isinstance(each, BaseException):
            found.setdefault("error", type(each).__name__)
    return found
