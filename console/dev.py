"""`folkmoot dev`: a whole cluster on this machine, until Ctrl-C."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from folkmoot.console.processes import EmbeddedCluster

LOOK_EVERY = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        default=default_directory(),
        help="where everything is kept, and found again by the next run (default: %(default)s)",
    )
    parser.add_argument(
        "--brokers", type=_at_least_one, metavar="N", default=3, help="default: %(default)s"
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        default=0,
        help="ZooKeeper's port (default: a free one)",
    )
    parser.add_argument(
        "--broker-port",
        type=_port,
        metavar="FIRST",
        default=0,
        help="port of broker 1, the next one of broker 2 and so on (default: free ones)",
    )
    # Not FOLKMOOT_ZOOKEEPER: who has that set for clients still wants a cluster of his own here.
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="use this ZooKeeper instead of starting one",
    )


def run(args: argparse.Namespace) -> int:
    # Imported here, so that the help of the command line does not wait for them.
    from folkmoot.console.embedded import ZooKeeperConfig
    from folkmoot.console.processes import EmbeddedCluster

    cluster = EmbeddedCluster(
        args.data,
        brokers=args.brokers,
        zookeeper=args.zookeeper or ZooKeeperConfig(port=args.port),
        first_broker_port=args.broker_port,
    )
    with _sigterm_like_ctrl_c():
        try:
            with cluster:
                _say_where_everything_is(cluster)
                return _watch(cluster)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "folkmoot" / "dev"


def _say_where_everything_is(cluster: "EmbeddedCluster") -> None:
    lines = [f"zookeeper  {cluster.zookeeper}"]
    lines += [f"broker {broker.broker_id}   {broker.address}" for broker in cluster.brokers]
    lines += [f"data       {cluster.directory}", ""]
    lines += [f"export FOLKMOOT_ZOOKEEPER={cluster.zookeeper}", "Ctrl-C stops all of it."]
    print("\n".join(lines), flush=True)


def _watch(cluster: "EmbeddedCluster") -> int:
    """Until a signal comes. A broker may die and the rest goes on; without ZooKeeper nothing does."""
    running = list(cluster.brokers)
    while cluster.server is None or cluster.server.is_running:
        for broker in [broker for broker in running if not broker.is_running]:
            running.remove(broker)
            failure = broker.child.failure(f"ended with exit code {broker.child.exit_code}")
            print(f"folkmoot: {failure}", file=sys.stderr, flush=True)
        time.sleep(LOOK_EVERY)
    log = cluster.server.log
    print(f"folkmoot: ZooKeeper ended: see {log}, then start again", file=sys.stderr, flush=True)
    return 1


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{number} is not a port")
    return number
