"""The command line's front: finds the command, and turns errors into one line and an exit code.

A command is a module with `add_arguments(parser)` and `run(args) -> exit code`. Only the module of
the command that was chosen is imported, so that help appears at once; modules import what is heavy
in `run`.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple, NoReturn

from folkmoot import __version__
from folkmoot.console import streams
from folkmoot.console.options import DEGRADED, NotConfirmed, NotReadToTheEnd, RegistryUnreachable
from folkmoot.console.parser import Parser
from folkmoot.protocol.errors import (
    BrokerIdTaken,
    BrokerUnreachable,
    ConfigError,
    DeliveryTimeout,
    DirectoryLocked,
    DiskFailed,
    ElectionImpossible,
    FlushTimeout,
    FolkmootError,
    GroupNotEmpty,
    InvalidName,
    InvalidReplicationFactor,
    InvalidSubject,
    OperationNotPermitted,
    ReferenceExists,
    RequestTimeout,
    StaleTopicId,
    ZooKeeperUnreachable,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
DISK_FAILED: Final = 6
INCOMPLETE: Final = 7
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "done",
    FAILED: "failed",
    USAGE: "wrong usage",
    UNREACHABLE: "ZooKeeper or brokers did not answer",
    REFUSED: "refused for safety",
    DEGRADED: "degraded",
    DISK_FAILED: "the disk failed",
    INCOMPLETE: "not everything was read",
    INTERRUPTED: "interrupted",
}
"""What the exit codes say, here and in docs/operations.md."""


class Command(NamedTuple):
    """Where a command lives, and its line in the help."""

    module: str
    summary: str


COMMANDS: Final = {
    "broker": Command(
        "folkmoot.console.broker", "run one broker until it is told to stop; list brokers"
    ),
    "controller": Command(
        "folkmoot.console.controller", "run a candidate for the controller, without a broker"
    ),
    "cluster": Command("folkmoot.console.cluster", "say whether everything is led and in sync"),
    "registry": Command(
        "folkmoot.console.registry", "serve schemas over HTTP, as Confluent's clients ask for them"
    ),
    "top": Command(
        "folkmoot.console.monitoring.top", "watch brokers, topics, groups and rebalances live"
    ),
    "exporter": Command(
        "folkmoot.console.monitoring.exporter", "tell Prometheus of the lag of all groups"
    ),
    "topic": Command(
        "folkmoot.console.topic", "create, list, describe, measure, change and delete topics"
    ),
    "produce": Command("folkmoot.console.produce", "send lines as records"),
    "consume": Command("folkmoot.console.consume", "show records, decoded by their schema"),
    "log": Command(
        "folkmoot.console.log", "look into a broker's files: verify, dump, find orphans, sizes"
    ),
    "schema": Command(
        "folkmoot.console.schema.command", "register, judge, compare, delete and copy schemas"
    ),
    "group": Command("folkmoot.console.group", "list, describe, reset and delete consumer groups"),
    "spark": Command(
        "folkmoot.console.spark.command", "run Spark applications, and a cluster of Spark's here"
    ),
    "dev": Command("folkmoot.console.dev", "run a whole cluster on this machine"),
    "completion": Command("folkmoot.console.completion", "have the shell complete words"),
    "demo": Command("folkmoot.console.demo.run", "carry real flights through everything"),
}

EXIT_CODES: Final[dict[type[FolkmootError], int]] = {
    ConfigError: USAGE,
    InvalidName: USAGE,
    InvalidReplicationFactor: USAGE,
    InvalidSubject: USAGE,
    BrokerUnreachable: UNREACHABLE,
    DeliveryTimeout: UNREACHABLE,
    FlushTimeout: UNREACHABLE,
    RequestTimeout: UNREACHABLE,
    ZooKeeperUnreachable: UNREACHABLE,
    BrokerIdTaken: REFUSED,
    DirectoryLocked: REFUSED,
    DiskFailed: DISK_FAILED,
    ElectionImpossible: REFUSED,
    GroupNotEmpty: REFUSED,
    NotConfirmed: REFUSED,
    NotReadToTheEnd: INCOMPLETE,
    OperationNotPermitted: REFUSED,
    ReferenceExists: REFUSED,
    RegistryUnreachable: UNREACHABLE,
    StaleTopicId: REFUSED,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line given, by default this process's. → the exit code."""
    if arguments is None:
        streams.prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = argparse.Namespace()
    try:
        try:
            args = build_parser(words).parse(words)
            code: int = args.run(args)
        finally:
            sys.stdout.flush()  # here, where it can still be said that it was not possible
        return code
    except FolkmootError as error:
        print(f"folkmoot: {error}{_tried(error, args)}", file=sys.stderr)
        if isinstance(error, streams.OutputFailed):
            streams.silence()
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        streams.silence()  # whoever read the output has enough
        return OK


def _tried(error: FolkmootError, args: argparse.Namespace) -> str:
    """Where it was that nobody answered, if the error does not say so."""
    address = getattr(args, "zookeeper", None) or getattr(args, "bootstrap", None)
    if isinstance(error, RegistryUnreachable) or exit_code(error) != UNREACHABLE:
        return ""
    if not address or address in str(error):
        return ""
    return f" (the cluster at {address})"


class _Version(argparse.Action):
    """Says which version this is, and whether its modules in C were built and are in use."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        appender = import_module("folkmoot.producers.appender")
        print(f"folkmoot {__version__} ({appender.IMPLEMENTATION})")
        parser.exit()


def build_parser(words: Sequence[str]) -> Parser:
    """The parser for these words; of all commands only the chosen one's options are known to it."""
    parser = Parser(
        prog="folkmoot",
        description="A replicated, partitioned log with consumer groups.",
        epilog="exit codes: "
        + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run, whole=build_parser)
    return parser


def exit_code(error: FolkmootError) -> int:
    """The process's exit code for an error."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), FAILED)


if __name__ == "__main__":
    sys.exit(main())
