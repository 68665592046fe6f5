"""What the actions of `folkmoot spark` do."""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from folkmoot.console.options import sigterm_like_ctrl_c
from folkmoot.console.spark.apps import find
from folkmoot.console.spark.cluster import StandaloneCluster
from folkmoot.console.spark.spark_environment import spark_environment
from folkmoot.protocol.errors import ConfigError

CHECK_INTERVAL: Final = 0.5


def _run(args: argparse.Namespace) -> int:
    """Run spark-submit until the application ends; return its exit code."""
    app = find(args.app)
    with tempfile.TemporaryDirectory(prefix="folkmoot-spark-") as directory:
        environment = spark_environment(Path(directory))
        python = os.environ.get("PYSPARK_PYTHON")
        if python is not None and not args.master.startswith("local"):
            environment["PYSPARK_PYTHON"] = python  # where executors have theirs
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", args.master]
        for name, value in _settings(args.master).items():
            command += ["--conf", f"{name}={value}"]
        for setting in args.conf:
            command += ["--conf", setting]
        return _exit_code([*command, str(app), *args.arguments], environment)


def _settings(master: str) -> dict[str, str]:
    from folkmoot.spark_apps.session import LOOPBACK, QUIET_AND_LOCAL

    if master.startswith("local"):
        return {"spark.log.level": "WARN", **QUIET_AND_LOCAL}
    is_here = master.startswith("spark://127.0.0.1:")
    return {"spark.log.level": "WARN", **(LOOPBACK if is_here else {})}


def _exit_code(command: list[str], environment: dict[str, str]) -> int:
    with sigterm_like_ctrl_c():
        process = subprocess.Popen(command, env={**os.environ, **environment})
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # Ctrl-C has reached it already, SIGTERM has not
            process.wait()
            raise
    return code if code >= 0 else 128 - code


def _cluster(args: argparse.Namespace) -> int:
    """Run until a signal comes, or one of its processes ends. Raises StartFailed, AddressTaken."""
    with (
        tempfile.TemporaryDirectory(prefix="folkmoot-spark-", ignore_cleanup_errors=True) as made,
        sigterm_like_ctrl_c(),
    ):
        directory = args.data or Path(made)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory}: {error.strerror}: use another --data") from None
        environment = spark_environment(directory.absolute() / "java")
        size = {"workers": args.workers, "cores": args.cores, "memory": args.memory}
        try:
            with StandaloneCluster(directory, environment, **size, port=args.port) as cluster:
                print(
                    f"master     {cluster.url}\npage       {cluster.page}\ndata       {directory}"
                )
                print(f"\nfolkmoot spark run --master {cluster.url} APP")
                print("Ctrl-C stops all of it.", flush=True)
                while True:
                    cluster.check()
                    time.sleep(CHECK_INTERVAL)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


ACTIONS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"run": _run, "cluster": _cluster}
