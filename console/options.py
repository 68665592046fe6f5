"""Options that several commands share."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from folkmoot.coordination.store import Store

ENVIRONMENT: Final = "FOLKMOOT_ZOOKEEPER"
SESSION_TIMEOUT: Final = 10.0
CONNECT_TIMEOUT: Final = 5.0


def add_zookeeper(parser: argparse.ArgumentParser) -> None:
    """`--zookeeper`, which is the cluster's address; required unless the environment has it."""
    known = os.environ.get(ENVIRONMENT)
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        default=known,
        required=not known,
        help=f"the cluster's ZooKeeper (default: ${ENVIRONMENT})",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o table|json` for commands that print a table."""
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: table"
    )


@contextmanager
def store_of(args: argparse.Namespace) -> Iterator["Store"]:
    """A short ZooKeeper session at `--zookeeper`. Raises ZooKeeperUnreachable."""
    from folkmoot.coordination.zookeeper import connect

    store = connect(args.zookeeper, SESSION_TIMEOUT, connect_timeout=CONNECT_TIMEOUT)
    try:
        yield store
    finally:
        store.close()
