"""Ask the source of a running query to start no new batch, wherever the query runs.

A process on the driver's machine holds a query's membership. Applications may be elsewhere (Spark
Connect), and Spark has no call for it; but it makes data sources on the driver's machine, too.
"""

import json
import os
import signal
import socket
from pathlib import Path

from pyspark.sql.datasource import DataSource

DRAIN_SIGNAL = signal.SIGUSR1
_RUNNER = b"python_streaming_source_runner"


class Drain(DataSource):
    """A source without rows: when Spark asks for its columns, it signals the `runners` that sources
    report."""

    @classmethod
    def name(cls) -> str:
        return "folkmoot_drain"

    def schema(self) -> str:
        for runner in json.loads(self.options["runners"]):
            if runner["host"] == socket.gethostname() and _is_runner(runner["pid"]):
                os.kill(runner["pid"], DRAIN_SIGNAL)
        return "signalled boolean"


def _is_runner(pid: int) -> bool:
    """Return whether a source runs under this id: another process of that id must not be signalled."""
    try:
        return _RUNNER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
