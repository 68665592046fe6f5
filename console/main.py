"""The command line's front: finds the command, and turns errors into one line and an exit code.

A command is a module whose `command` is click's; its function returns the exit code. Only the module of
the command that was chosen is imported, so that help appears at once. Modules import what is heavy in
the functions that need it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from folkmoot import __version__
from folkmoot.console import completion, streams
from folkmoot.console.exit_codes import (
    INTERRUPTED,
    MEANINGS,
    OK,
    UNREACHABLE,
    RegistryUnreachable,
    exit_code,
)
from folkmoot.protocol.errors import FolkmootError


class Command(NamedTuple):
    """A command's module in `folkmoot.console`, and its line in the help."""

    module: str
    summary: str


COMMANDS: Final = {
    "broker": Command("running.broker", "Run one broker; list, stop and drain brokers."),
    "controller": Command("running.controller", "Run a candidate for the controller only."),
    "cluster": Command("cluster.status", "Show whether all partitions are led and in sync."),
    "registry": Command("running.registry", "Serve schemas over HTTP."),
    "top": Command("monitoring.top", "Watch brokers, topics, groups and rebalances live."),
    "exporter": Command("monitoring.exporter", "Serve the lag of all groups to Prometheus."),
    "topic": Command("cluster.topic", "Create, list, describe, change and delete topics."),
    "produce": Command("records.produce", "Send lines as records."),
    "consume": Command("records.consume", "Show records, decoded by their schema."),
    "log": Command("cluster.log", "Inspect a broker's files: verify, dump, orphans, sizes."),
    "schema": Command("schema.command", "Register, check, compare, delete and copy schemas."),
    "group": Command("cluster.group", "List, describe, reset and delete consumer groups."),
    "spark": Command("spark.command", "Run Spark applications, and a Spark cluster here."),
    "dev": Command("running.dev", "Run a whole cluster on this machine."),
    "completion": Command("completion", "Print a script that makes a shell complete words."),
    "demo": Command("running.demo", "Run the end-to-end demo with real flights."),
}


class LazyGroup(click.Group):
    """Imports the module of the chosen command only; the others are names with a summary."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, remaining = super().resolve_command(ctx, args)
        if name is not None and found is not None:
            found = import_module(f"folkmoot.console.{COMMANDS[name].module}").command
        return name, found, remaining


def _show_version(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the version, and whether the modules in C were built and are in use."""
    if is_set and not context.resilient_parsing:
        appender = import_module("folkmoot.producers.appender")
        print(f"folkmoot {__version__} ({appender.IMPLEMENTATION})")
        context.exit()


@click.group(
    "folkmoot",
    cls=LazyGroup,
    commands={name: click.Command(name, help=each.summary) for name, each in COMMANDS.items()},
    help="A replicated message log with consumer groups for Python and Spark.",
    epilog=f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in MEANINGS.items())}.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    *("--version", "version"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line given, by default this process's. → the exit code."""
    if arguments is None:
        streams.prepare()
        if (code := completion.complete_for_shell(cli)) is not None:
            return code
    words = list(sys.argv[1:] if arguments is None else arguments)
    context: click.Context | None = None
    try:
        try:
            with cli.make_context("folkmoot", words) as context:
                result: int = cli.invoke(context)
        finally:
            sys.stdout.flush()  # here, where its failure can still be reported
        return result
    except click.exceptions.Exit as exited:
        return exited.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FolkmootError as error:
        print(f"folkmoot: {error}{_cluster_of(error, context)}", file=sys.stderr)
        if isinstance(error, streams.OutputFailed):
            streams.silence()
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        streams.silence()  # the reader of the output has enough
        return OK


def _cluster_of(error: FolkmootError, context: click.Context | None) -> str:
    """Return where the cluster is that did not answer, if the error does not name it."""
    cluster: Any = None if context is None else context.obj
    if cluster is None or exit_code(error) != UNREACHABLE or cluster.address in str(error):
        return ""
    if isinstance(error, RegistryUnreachable):
        return ""
    return f" (the cluster at {cluster.address})"


if __name__ == "__main__":
    sys.exit(main())
