"""`folkmoot demo`: the options of the end-to-end demo."""

from pathlib import Path

import click

from folkmoot.console.options.values import FILE


@click.command()
@click.option("--flights", type=int, metavar="N", help="Only the first N flights (default: all).")
@click.option(
    "--keep",
    type=FILE,
    help="Keep all data and logs in this new directory (default: they are removed).",
)
def command(flights: int | None, keep: Path | None) -> int:
    """Send real flights through brokers, a group with a Spark application, a kill, and a comparison.

    The exit code is 0 if everything agrees.
    """
    from folkmoot.console.demo.run import run

    return run(flights, keep)
