"""A standalone cluster of Spark's on this machine, from the jars that PySpark brings."""

import http.client
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from folkmoot.console.running.children import ChildProcess, free_port, port_is_free
from folkmoot.protocol.errors import AddressTaken

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 15.0
ANSWER_TIMEOUT: Final = 2.0
JAVA_OPTIONS: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    # Without this Spark takes another port where the given one is in use.
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
        self._port = port or free_port()
        self._page_port = free_port()
        self._environment = {
            **environment,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(JAVA_OPTIONS),
        }
        ports = ("--port", str(self._port), "--webui-port", str(self._page_port))
        self._master = self._daemon("master", "master.Master", *ports)
        size = ("--webui-port", "0", "--cores", str(cores), "--memory", memory)
        self.workers = [
            self._daemon(f"worker-{number}", "worker.Worker", *size, "--work-dir", own, self.url)
            for number in range(1, workers + 1)
            for own in [str(self._directory / f"worker-{number}")]
        ]

    @property
    def url(self) -> str:
        """The URL that `--master` takes."""
        return f"spark://{HOST}:{self._port}"

    @property
    def page(self) -> str:
        """The master's page for people."""
        return f"http://{HOST}:{self._page_port}"

    def __enter__(self) -> Self:
        """Return when all workers have registered. Raises StartFailed, AddressTaken."""
        if not port_is_free(self._port):
            raise AddressTaken(
                f"port {self._port} for Spark's master is in use: choose another --port"
            )
        with ExitStack() as undo:
            undo.callback(self._stop)
            self._master.start()
            self._master.wait_until(lambda: self._has_workers(0), START_TIMEOUT)
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                worker.wait_until(lambda: self._has_workers(len(self.workers)), START_TIMEOUT)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def check(self) -> None:
        """Raise StartFailed if one of its processes has ended."""
        for child in (self._master, *self.workers):
            if not child.is_running:
                raise child.failure(child.ending())

    def _stop(self) -> None:
        """Stop the workers first, whose executors end with them."""
        for worker in self.workers:
            worker.terminate()
        for child in (*self.workers, self._master):
            child.stop(STOP_TIMEOUT)

    def _daemon(self, name: str, kind: str, *words: str) -> ChildProcess:
        spark_class = f"{self._environment['SPARK_HOME']}/bin/spark-class"
        return ChildProcess(
            f"Spark's {name}",
            [spark_class, f"org.apache.spark.deploy.{kind}", "--host", HOST, *words],
            self._directory / f"{name}.log",
            {**self._environment, "SPARK_LOCAL_DIRS": str(self._directory / name / "scratch")},
        )

    def _has_workers(self, count: int) -> bool | None:
        """Return whether the master is alive and has that many workers; None until it is so."""
        connection = http.client.HTTPConnection(HOST, self._page_port, timeout=ANSWER_TIMEOUT)
        try:
            connection.request("GET", "/json/")
            found = json.loads(connection.getresponse().read())
            return (found["status"] == "ALIVE" and found["aliveworkers"] >= count) or None
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        finally:
            connection.close()
