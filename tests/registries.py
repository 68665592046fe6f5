"""`folkmoot registry` as a process of its own."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.console.cluster import FOLKMOOT

STOP_TIMEOUT = 10.0


@contextmanager
def registry_process(zookeeper: str) -> Iterator[str]:
    """Its address, once it takes connections."""
    words = [*FOLKMOOT, "registry", "--port", "0", "--zookeeper", zookeeper]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"folkmoot registry has ended, or says {line!r}"
            yield found[0]
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
