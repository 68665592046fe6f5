"""`folkmoot broker`: one broker in this process until a signal; `broker list`, `broker stop`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.cluster.replicas import drain
from folkmoot.console.options.cluster import Cluster, timeout_option, with_zookeeper
from folkmoot.console.options.declared import config_options
from folkmoot.console.options.monitoring import log_to_stderr, serve_pages
from folkmoot.console.options.names import BROKER
from folkmoot.console.options.values import FILE, TIME, output_option
from folkmoot.console.tables import show

if TYPE_CHECKING:
    from folkmoot.coordination.zookeeper.session import Session
    from folkmoot.metrics.pages import MetricsSource

OPTIONS = [each.name for each in fields(BrokerConfig) if each.name != "log"]
STOP_TIMEOUT = 60.0
_POLL_INTERVAL = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WAIT_INTERVAL = 0.5
"""A signal that comes right before a wait begins does not end it: Python sees it when the wait is over."""


@click.group(invoke_without_command=True)
@config_options(BrokerConfig, *OPTIONS, unset=True)
@click.option(
    *("--set", "log_settings"),
    multiple=True,
    metavar="log.OPTION=VALUE",
    help="An option of all topics that have none of their own, such as log.retention=7d; may be repeated.",
)
@click.option(
    "--config",
    type=FILE,
    help="Options as TOML, those of topics in a table [log]. The environment (FOLKMOOT_SESSION_TIMEOUT, "
    "FOLKMOOT_LOG_RETENTION) overrides the file, flags override both.",
)
@click.option(
    "--no-guardian",
    is_flag=True,
    help="Do not start the process that ends the session at once when this one dies.",
)
@timeout_option()
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Run one broker in this process until SIGTERM or Ctrl-C."""
    if context.invoked_subcommand is None:
        return _run(**options)
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError("Options of an action stand behind its name.")
    return 0


command.add_command(drain)


@command.command("list")
@output_option
@with_zookeeper()
def _list(cluster: Cluster, output: str) -> int:
    """List the live brokers, and how many partitions each leads."""
    from folkmoot.coordination import brokers
    from folkmoot.coordination.cluster.cluster_status import read_cluster
    from folkmoot.coordination.zookeeper.execute import execute

    with cluster.session() as session:
        status = read_cluster(session, cluster.timeout)
        drained = execute(session, brokers.drained(), cluster.timeout)
    partitions = status.partitions
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
        for number, found in sorted(status.brokers.items())
    ]
    columns = (
        *("broker", "address", "rack", "version", "epoch", "leads", "replicas", "out of sync"),
        "drained",
    )
    show(columns, rows, output)
    return 0


@command.command("stop")
@click.argument("number", metavar="ID", type=BROKER)
@click.option("--within", type=TIME, default=f"{STOP_TIMEOUT:g}s", help="How long it may take.")
@with_zookeeper()
def _stop(cluster: Cluster, number: int, within: float) -> int:
    """Have a broker hand over its partitions and end, as SIGTERM does.

    Returns when it has left the cluster. A supervisor that restarts brokers (compose, `folkmoot dev`)
    restarts this one, too.
    """
    from folkmoot.coordination import brokers
    from folkmoot.coordination.zookeeper.execute import execute
    from folkmoot.protocol.errors import BrokerUnreachable, RequestTimeout

    deadline, timeout = time.monotonic() + within, cluster.timeout
    with cluster.session() as session:
        found = execute(session, brokers.read(number), timeout)
        if found is None:
            raise BrokerUnreachable(f"no broker {number} is registered: `folkmoot broker list`")
        nonce = found.nonce
        execute(session, brokers.leave(number, found), timeout)  # False: it has left meanwhile
        while found is not None and found.nonce == nonce:
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"broker {number} was asked to stop, and is still registered after "
                    f"{within:g} s: its log says what it waits for"
                )
            time.sleep(_POLL_INTERVAL)
            found = execute(session, brokers.read(number), timeout)
    print(f"broker {number} has left the cluster")
    return 0


def _run(
    log_settings: tuple[str, ...],
    config: Path | None,
    no_guardian: bool,
    timeout: float,
    **options: Any,
) -> int:
    from folkmoot.brokers.server.broker import Broker
    from folkmoot.brokers.server.garbage_collection import SurvivorsFrozen
    from folkmoot.brokers.storage.log_manager import cluster_of
    from folkmoot.console.running.settings import broker_config, flag
    from folkmoot.coordination.connector import connect

    own = broker_config(config, os.environ, options | dict(map(flag, log_settings)))
    log_to_stderr(own.log_format, own.log_level)

    def connects(session_timeout: float) -> "Session":
        """Connect; a directory that belongs to a cluster never begins another one in an empty ZooKeeper."""
        return connect(
            *(own.zookeeper, session_timeout),
            connect_timeout=timeout,
            guarded=not no_guardian,
            create=not cluster_of(own.data),
        )

    broker = Broker(own, connects)

    def metrics() -> "MetricsSource":
        from folkmoot.metrics.broker import BrokerMetrics

        return BrokerMetrics(broker)

    # The pages come first: until the broker is registered they say that it is not ready.
    with _stop_signals(), serve_pages(own.metrics_host, own.metrics_port, metrics, sys.stdout):
        try:
            broker.start()
            SurvivorsFrozen().begin()
            addresses = " ".join(f"{name}={at}" for name, at in broker.listeners.items())
            print(f"broker {own.broker_id} ready {addresses}", flush=True)
            while not broker.wait(_WAIT_INTERVAL):
                pass
            _ignore_signals()
        except _StopRequested:
            pass
        finally:
            broker.close()
    return 0


class _StopRequested(BaseException):
    """A signal asks the process to stop."""


def _ignore_signals() -> None:
    """Ignore further signals: it stops already."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Have SIGTERM and SIGINT raise _Stopped, once: a second one does not disturb the orderly stop."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise _StopRequested

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            for number, handler in before.items():
                signal.signal(number, handler)
