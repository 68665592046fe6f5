"""What the actions of `folkmoot spark` do."""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from folkmoot.console.options import sigterm_like_ctrl_c
from folkmoot.console.spark.apps import apps, find, summary
from folkmoot.console.spark.cluster import StandaloneCluster
from folkmoot.console.spark.surroundings import surroundings
from folkmoot.console.tables import show
from folkmoot.protocol.errors import ConfigError

LOOK_EVERY: Final = 0.5
EVERYWHERE: Final = {"spark.log.level": "WARN"}
ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def _list(args: argparse.Namespace) -> int:
    rows = [(name, summary(path), str(path)) for name, path in apps().items()]
    show(("name", "what it does", "file"), rows, args.output)
    return 0


def _run(args: argparse.Namespace) -> int:
    app = find(args.app)
    with tempfile.TemporaryDirectory(prefix="folkmoot-spark-") as directory:
        environment = surroundings(Path(directory))
        from folkmoot.spark_apps.session import QUIET_AND_LOCAL

        return _submitted(args, app, "local[*]", QUIET_AND_LOCAL, environment)


def _submit(args: argparse.Namespace) -> int:
    app = find(args.app)
    with tempfile.TemporaryDirectory(prefix="folkmoot-spark-") as directory:
        environment = surroundings(Path(directory))
        if (python := os.environ.get("PYSPARK_PYTHON")) is not None:  # where executors have theirs
            environment["PYSPARK_PYTHON"] = python
        here = args.master.startswith(("spark://127.0.0.1:", "local"))
        return _submitted(args, app, args.master, ON_THIS_MACHINE if here else {}, environment)


def _submitted(
    args: argparse.Namespace,
    app: Path,
    master: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
) -> int:
    """spark-submit, until the application ends. → its exit code."""
    ours = [f"{name}={value}" for name, value in {**EVERYWHERE, **settings}.items()]
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", master]
    for setting in (*ours, *args.conf):
        command += ["--conf", setting]
    for option, files in (("--py-files", args.py_files), ("--archives", args.archives)):
        command += [] if files is None else [option, files]
    with sigterm_like_ctrl_c():
        process = subprocess.Popen(
            [*command, str(app), *args.arguments], env={**os.environ, **environment}
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # Ctrl-C has reached it already, SIGTERM has not
            process.wait()
            raise
    return code if code >= 0 else 128 - code


def _cluster(args: argparse.Namespace) -> int:
    """Until a signal comes, or one of its processes ends. Raises StartFailed, AddressTaken."""
    with (
        tempfile.TemporaryDirectory(prefix="folkmoot-spark-", ignore_cleanup_errors=True) as made,
        sigterm_like_ctrl_c(),
    ):
        directory = args.data or Path(made)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory}: {error.strerror}: use another --data") from None
        cluster = StandaloneCluster(
            directory,
            surroundings(directory.absolute() / "java"),
            workers=args.workers,
            cores=args.cores,
            memory=args.memory,
            port=args.port,
        )
        try:
            with cluster:
                print(
                    f"master     {cluster.url}\npage       {cluster.page}\ndata       {directory}"
                )
                print(f"\nfolkmoot spark submit --master {cluster.url} APP")
                print("Ctrl-C stops all of it.", flush=True)
                while True:
                    cluster.look()
                    time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "list": _list,
    "run": _run,
    "submit": _submit,
    "cluster": _cluster,
}
