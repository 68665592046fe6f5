"""`folkmoot broker`: one broker in this process, until it is told to stop; `broker list`, `broker stop`."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console import replicas
from folkmoot.console.monitoring.options import log_to_stderr, served
from folkmoot.console.options import (
    add_declared,
    add_output,
    add_timeout,
    add_zookeeper,
    session_of,
    typed,
    waiting_time,
    whole_number,
)
from folkmoot.console.tables import show

if TYPE_CHECKING:
    from folkmoot.brokers.server.broker import Broker
    from folkmoot.coordination.zookeeper.session import Session

OPTIONS = [each.name for each in fields(BrokerConfig) if each.name != "log"]
STOP_TIMEOUT = 60.0
_LOOK_AGAIN = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK = 0.5
"""A signal that comes right before a wait begins does not end it: Python hears of it behind it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, BrokerConfig, *OPTIONS)
    parser.set_defaults(**dict.fromkeys(OPTIONS))  # the environment and a file may say it
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="log.OPTION=VALUE",
        help="for topics that have no settings of their own, such as log.retention=7d or "
        "log.retention_bytes=100GiB; may be repeated",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="options as TOML, those for all topics in a table [log]; the environment "
        "(FOLKMOOT_SESSION_TIMEOUT, FOLKMOOT_LOG_RETENTION) goes before it, flags go before both",
    )
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="do not start the process that ends the session at once when this one dies",
    )
    add_timeout(parser)
    parser.set_defaults(act=_run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=False)
    listing = actions.add_parser("list", help="the live brokers, and what they lead")
    listing.set_defaults(act=_list)
    add_zookeeper(listing)
    add_output(listing)
    _add_stop(actions)
    replicas.add_drain(actions)


def _add_stop(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    stop = actions.add_parser(
        "stop",
        help="have a broker hand over what it leads and end, as SIGTERM does",
        description="Returns when it has left the cluster. What restarts brokers that have ended "
        "(compose, `folkmoot dev`) restarts this one, too.",
    )
    stop.set_defaults(act=_stop)
    stop.add_argument("broker", type=whole_number, metavar="ID")
    stop.add_argument(
        "--within",
        type=typed(waiting_time),
        default=STOP_TIMEOUT,
        metavar="TIME",
        help=f"so long it may take to end (default: {STOP_TIMEOUT:g}s)",
    )
    add_zookeeper(stop)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def _list(args: argparse.Namespace) -> int:
    from folkmoot.coordination import brokers
    from folkmoot.coordination.cluster.cluster_status import read_cluster
    from folkmoot.coordination.zookeeper.execute import execute

    with session_of(args) as session:
        cluster = read_cluster(session, args.timeout)
        drained = execute(session, brokers.drained(), args.timeout)
    partitions = cluster.partitions
    rows = [
        (
            number,
            found.listeners.get("client"),
            found.rack or None,
            found.version or None,
            found.epoch,
            sum(each.leader == number for each in partitions),
            sum(number in each.replicas for each in partitions),
            sum(number in each.replicas and number not in each.in_sync for each in partitions),
            "yes" if number in drained else None,
        )
        for number, found in sorted(cluster.brokers.items())
    ]
    columns = (
        *("broker", "address", "rack", "version", "epoch", "leads", "replicas", "out of sync"),
        "drained",
    )
    show(columns, rows, args.output)
    return 0


def _stop(args: argparse.Namespace) -> int:
    from folkmoot.coordination import brokers
    from folkmoot.coordination.zookeeper.execute import execute
    from folkmoot.protocol.errors import BrokerUnreachable, RequestTimeout

    number, deadline = args.broker, time.monotonic() + args.within
    with session_of(args) as session:
        found = execute(session, brokers.read(number), args.timeout)
        if found is None:
            raise BrokerUnreachable(f"no broker {number} is registered: `folkmoot broker list`")
        nonce = found.nonce
        execute(session, brokers.leave(number, found), args.timeout)  # False: it has left meanwhile
        while found is not None and found.nonce == nonce:
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"broker {number} was told to stop, and is registered still after "
                    f"{args.within:g} s: its log says what it waits for"
                )
            time.sleep(_LOOK_AGAIN)
            found = execute(session, brokers.read(number), args.timeout)
    print(f"broker {number} has left the cluster")
    return 0


def _run(args: argparse.Namespace) -> int:
    from folkmoot.brokers.server.broker import Broker
    from folkmoot.brokers.server.garbage_collection import SurvivorsFrozen
    from folkmoot.brokers.storage.log_manager import cluster_of
    from folkmoot.console.settings import broker_config, flag
    from folkmoot.coordination.connector import connect

    flags = {name: getattr(args, name) for name in OPTIONS} | dict(map(flag, args.set))
    config = broker_config(args.config, os.environ, flags)
    log_to_stderr(config.log_format, config.log_level)

    def connects(session_timeout: float) -> "Session":
        """A directory that belongs to a cluster makes no other one, however often ZooKeeper is emptied."""
        return connect(
            *(config.zookeeper, session_timeout),
            connect_timeout=args.timeout,
            guarded=not args.no_guardian,
            create=not cluster_of(config.data),
        )

    broker = Broker(config, connects)
    with _stop_signals(), _pages(config, broker):
        try:
            broker.start()
            SurvivorsFrozen().begin()
            addresses = " ".join(f"{name}={at}" for name, at in broker.listeners.items())
            print(f"broker {config.broker_id} ready {addresses}", flush=True)
            while not broker.wait(_LOOK):
                pass
            _ignore_signals()
        except _Stopped:
            pass
        finally:
            broker.close()
    return 0


def _pages(config: BrokerConfig, broker: "Broker") -> AbstractContextManager[None]:
    """From before the start on: until it is registered the broker is not ready, and says so."""
    if config.metrics_port is None:
        return nullcontext()
    from folkmoot.metrics.broker import BrokerMetrics

    return served(config.metrics_host, config.metrics_port, BrokerMetrics(broker), sys.stdout)


class _Stopped(BaseException):
    """The process was told to stop."""


def _ignore_signals() -> None:
    """It stops already."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise _Stopped, once: a second one does not disturb the orderly stop, nor the
    end of the process behind it."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            for number, handler in before.items():
                signal.signal(number, handler)
