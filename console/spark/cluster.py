"""A standalone cluster of Spark's on this machine, from the jars that PySpark brings."""

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from folkmoot.console.children import ChildProcess, free_port, port_is_free
from folkmoot.protocol.errors import AddressTaken

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 15.0
ANSWER_TIMEOUT: Final = 2.0
DAEMONS: Final = "org.apache.spark.deploy"
JAVA_OPTIONS: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    # Where a port is taken Spark would take another one, and nobody would know the master's.
    "-Dspark.port.maxRetries=0",
    "-Dspark.master.rest.enabled=false",
)


class StandaloneCluster:
    """A master and workers as child processes, each worker with a directory of its own below `directory`.

    Executors are the workers' children, and end with them. Everything ends when this process does,
    however that happens. One thread at a time uses it.
    """

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        *,
        workers: int,
        cores: int,
        memory: str,
        port: int = 0,
    ) -> None:
        self._directory = directory.absolute()
        self._port = port
        self._page_port = 0
        self._workers = workers
        self._of_each = ("--cores", str(cores), "--memory", memory)
        self._environment = {
            **environment,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(JAVA_OPTIONS),
        }
        self._children: list[ChildProcess] = []

    @property
    def url(self) -> str:
        """What `--master` takes, once it was started."""
        return f"spark://{HOST}:{self._port}"

    @property
    def workers(self) -> list[ChildProcess]:
        """The workers' processes, while it runs."""
        return self._children[1:]

    @property
    def page(self) -> str:
        """The master's page for people."""
        return f"http://{HOST}:{self._page_port}"

    def __enter__(self) -> Self:
        """Returns when all workers have registered. Raises StartFailed, AddressTaken."""
        if self._port and not port_is_free(self._port):
            raise AddressTaken(
                f"port {self._port} for Spark's master is in use: choose another --port"
            )
        self._port = self._port or free_port()
        self._page_port = free_port()
        with ExitStack() as undo:
            undo.callback(self._stop)
            where = ("--host", HOST, "--port", str(self._port), "--webui-port")
            master = self._start("master", "master.Master", (*where, str(self._page_port)))
            master.wait_until(self._alive_workers, START_TIMEOUT)
            workers = [self._start_worker(number + 1) for number in range(self._workers)]
            for worker in workers:
                worker.wait_until(self._all_registered, START_TIMEOUT)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def look(self) -> None:
        """Raises StartFailed if one of its processes has ended."""
        for child in self._children:
            if not child.is_running:
                raise child.failure(child.ending())

    def _stop(self) -> None:
        """The workers first, whose executors end with them."""
        for child in self._children[1:]:
            child.terminate()
        for child in reversed(self._children):
            child.stop(STOP_TIMEOUT)
        self._children.clear()

    def _start_worker(self, number: int) -> ChildProcess:
        own = self._directory / f"worker-{number}"
        words = ("--host", HOST, "--webui-port", "0", "--work-dir", str(own), *self._of_each)
        scratch = {"SPARK_LOCAL_DIRS": str(own / "scratch")}
        return self._start(f"worker-{number}", "worker.Worker", (*words, self.url), scratch)

    def _start(
        self,
        name: str,
        kind: str,
        words: tuple[str, ...],
        environment: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        child = ChildProcess(
            f"Spark's {name}",
            [f"{self._environment['SPARK_HOME']}/bin/spark-class", f"{DAEMONS}.{kind}", *words],
            self._directory / f"{name}.log",
            {**self._environment, **(environment or {})},
        )
        self._children.append(child)
        child.start()
        return child

    def _all_registered(self) -> bool | None:
        return (self._alive_workers() or 0) >= self._workers or None

    def _alive_workers(self) -> int | None:
        """What the master says, None while it says nothing."""
        connection = http.client.HTTPConnection(HOST, self._page_port, timeout=ANSWER_TIMEOUT)
        try:
            connection.request("GET", "/json/")
            found = json.loads(connection.getresponse().read())
            return int(found["aliveworkers"]) if found["status"] == "ALIVE" else None
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        finally:
            connection.close()
