"""`folkmoot broker`: one broker in this process, until SIGTERM or Ctrl-C."""

import argparse
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from folkmoot.console.options import add_zookeeper

DEFAULT_LISTENER = "client=127.0.0.1:0"
DEFAULT_SESSION_TIMEOUT = 6.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--id",
        type=int,
        required=True,
        metavar="N",
        dest="broker_id",
        help="the broker's number, its own for good",
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="where its logs are kept"
    )
    add_zookeeper(parser)
    parser.add_argument(
        "--listener",
        action="append",
        metavar="NAME=HOST:PORT[@HOST:PORT]",
        help="where to listen, and how others reach that; port 0 is a free one; may be given "
        f"several times (default: {DEFAULT_LISTENER})",
    )
    parser.add_argument(
        "--session-timeout",
        type=float,
        default=DEFAULT_SESSION_TIMEOUT,
        metavar="S",
        help="seconds of silence after which ZooKeeper takes it for dead (default: %(default)g)",
    )
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="do not start the process that ends the session at once when this one dies",
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.brokers.broker import Broker
    from folkmoot.brokers.config import BrokerConfig, Listener
    from folkmoot.coordination.connector import connector

    config = BrokerConfig(
        broker_id=args.broker_id,
        data=args.data,
        zookeeper=args.zookeeper,
        listeners=tuple(map(Listener.parse, args.listener or [DEFAULT_LISTENER])),
        session_timeout=args.session_timeout,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    broker = Broker(config, connector(args.zookeeper, guarded=not args.no_guardian))
    with _stop_signals():
        try:
            broker.start()
            addresses = " ".join(f"{name}={at}" for name, at in broker.listeners.items())
            print(f"broker {config.broker_id} ready {addresses}", flush=True)
            broker.wait()
        except _Stopped:
            pass
        finally:
            broker.close()
    return 0


class _Stopped(BaseException):
    """The process was told to stop."""


@contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise _Stopped, once: a second one does not disturb the orderly stop."""
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
