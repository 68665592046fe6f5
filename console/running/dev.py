"""`folkmoot dev`: a whole cluster on this machine, until Ctrl-C."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from folkmoot.console.options.cluster import SESSION_TIMEOUT, Cluster, timeout_option
from folkmoot.console.options.monitoring import logging_options
from folkmoot.console.options.values import COUNT, PORT, ParsedType
from folkmoot.console.running import registry
from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.errors import ConfigError, FolkmootError, pip_command

if TYPE_CHECKING:
    from folkmoot.console.running.children import Server
    from folkmoot.console.running.processes import EmbeddedCluster

POLL_INTERVAL: Final = 0.5
MAX_BROKERS: Final = 32
REPLICAS: Final = 3
DEATHS: Final = 3
DEATHS_WITHIN: Final = 60.0
"""A process that dies this often within this many seconds is not started again."""
REGISTRY_OFFSET: Final = 9
BROKERS_OFFSET: Final = 10
"""From `--port`, behind the ports of the largest ensemble."""


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "folkmoot" / "dev"


def _directory(text: str) -> Path:
    if not text:  # of an empty variable; it would be the present directory
        raise ConfigError("it is empty: name a directory")
    return Path(text)


DIRECTORY: Final = ParsedType("dir", _directory)


@click.command()
@click.option(
    *("--data", "directory"),
    type=DIRECTORY,
    default=default_directory,
    show_default="~/.local/state/folkmoot/dev",
    help="The directory of all data, for the next run, too.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, MAX_BROKERS),
    metavar="N",
    default=3,
    help=f"How many brokers, at most {MAX_BROKERS}.",
)
@click.option(
    "--replicas",
    type=COUNT,
    metavar="N",
    help=f"Replicas of topics that are created without --replicas (default: {REPLICAS}, or as "
    "many as brokers).",
)
@click.option(
    "--zookeepers",
    type=click.Choice((1, 3, 5)),
    help="How many ZooKeepers (default: as many as the directory was begun with, else 1).",
)
@click.option(
    "--port",
    type=PORT,
    metavar="N",
    default=0,
    help=f"Base of all ports: ZooKeeper's, from PORT + {REGISTRY_OFFSET} on the registry's, from PORT + "
    f"{BROKERS_OFFSET} on the brokers' (0: those of the last run, or free ones).",
)
@click.option(
    "--zookeeper-jars",
    type=DIRECTORY,
    help="Directory of ZooKeeper's jars, such as lib/ of a release (default: installed ones).",
)
@click.option(
    "--broker-port",
    type=PORT,
    metavar="N",
    default=0,
    help="Port of broker 1; broker 2 has the next one, …",
)
@click.option(
    "--metrics-port",
    type=PORT,
    metavar="N",
    help="Port of broker 1's pages; broker 2 has the next one, … (0: free ones; default: no pages).",
)
@click.option(
    "--registry-port", type=PORT, metavar="N", default=0, help="Port of the schema registry."
)
@logging_options
# It has no environment variable: FOLKMOOT_ZOOKEEPER is the cluster of clients, this one is made here.
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Use this ZooKeeper instead of starting one."
)
@timeout_option()
def command(
    directory: Path,
    brokers: int,
    replicas: int | None,
    zookeepers: int | None,
    port: int,
    zookeeper_jars: Path | None,
    broker_port: int,
    metrics_port: int | None,
    registry_port: int,
    log_format: str,
    log_level: str,
    zookeeper: str | None,
    timeout: float,
) -> int:
    """Run ZooKeeper, brokers and a schema registry on this machine, until Ctrl-C."""
    # Imported here, so that the help of the command line does not wait for them.
    from folkmoot.console.running.embedded import ZooKeeperConfig
    from folkmoot.console.running.processes import EmbeddedCluster

    if replicas is not None and replicas > brokers:
        raise ConfigError(
            f"--replicas {replicas} is above --brokers {brokers}: no topic could be created"
        )
    _check_ports(brokers, port, broker_port, metrics_port)
    if zookeeper:
        if zookeepers or port or zookeeper_jars:
            raise ConfigError(
                "--zookeeper starts none: leave out --zookeepers, --zookeeper-jars and --port"
            )
        # One error now, and not one at the end of each process.
        Cluster(zookeeper=zookeeper, timeout=timeout).connect(create=True)(SESSION_TIMEOUT).close()
    cluster = EmbeddedCluster(
        directory,
        brokers=brokers,
        zookeeper=zookeeper or ZooKeeperConfig(port=port, jars=zookeeper_jars),
        first_broker_port=broker_port or (port and port + BROKERS_OFFSET),
        zookeepers=zookeepers,
        default_replicas=replicas or min(REPLICAS, brokers),
        first_metrics_port=metrics_port,
        registry_port=None
        if registry.missing_library()
        else registry_port or (port and port + REGISTRY_OFFSET),
        log_options=_words_of({"--log-format": log_format, "--log-level": log_level}),
    )
    return _run(cluster, brokers)


def _run(cluster: "EmbeddedCluster", brokers: int) -> int:
    with sigterm_like_ctrl_c():
        try:
            if unused_brokers := cluster.unused_brokers():
                _warn(
                    f"{cluster.directory} has data of {_brokers(unused_brokers)}, not started with --brokers "
                    f"{brokers}: what only that has is missing until --brokers {unused_brokers[-1]}"
                )
            with cluster:
                _print_addresses(cluster)
                return _watch(cluster)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


def _check_ports(brokers: int, base: int, broker: int, metrics: int | None) -> None:
    """Raise ConfigError where the last port would be too high."""
    counts = {
        "--port": (base, BROKERS_OFFSET + brokers if base else 1),
        "--broker-port": (broker, brokers),
        "--metrics-port": (metrics or 1, brokers),
    }
    for option, (first, count) in counts.items():
        if first + count - 1 > 65_535:
            raise ConfigError(f"{option} {first} leaves no port for all {count}: use a lower one")


def _words_of(options: Mapping[str, str]) -> list[str]:
    """Return options for the command lines of brokers and registry, without defaults."""
    non_defaults = {name: value for name, value in options.items() if value not in ("text", "info")}
    return [word for option in non_defaults.items() for word in option]


def _brokers(numbers: list[int]) -> str:
    return f"broker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _warn(text: str) -> None:
    print(f"folkmoot: {text}", file=sys.stderr, flush=True)


def _print_addresses(cluster: "EmbeddedCluster") -> None:
    lines = [f"zookeeper  {cluster.zookeeper}"]
    for broker in cluster.brokers:
        metrics = f"   {broker.metrics}" if broker.metrics else ""
        lines.append(f"broker {broker.broker_id}   {broker.address}{metrics}")
    missing_text = f"none: {pip_command('server')} brings it"
    lines.append(f"registry   {missing_text if cluster.registry is None else cluster.registry.url}")
    lines += [f"data       {cluster.directory}", ""]
    lines += [f"export FOLKMOOT_ZOOKEEPER={cluster.zookeeper}", "Ctrl-C stops all of it."]
    print("\n".join(lines), flush=True)


def _watch(cluster: "EmbeddedCluster") -> int:
    """Start again what dies, unless it dies again and again, until a signal comes.

    Without one broker or the registry the rest still runs; without ZooKeeper it all ends.
    """
    servers = [_SupervisedProcess(server) for server in cluster.servers]
    supervised = [*servers, *(_SupervisedProcess(broker) for broker in cluster.brokers)]
    if cluster.registry is not None:
        supervised.append(_SupervisedProcess(cluster.registry))
    while not any(server.has_failed for server in servers):
        for each in supervised:
            each.check()
        time.sleep(POLL_INTERVAL)
    return 1


class _SupervisedProcess:
    """One process of the cluster, and when it has died."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.has_failed = False
        self._is_back = True
        self._deaths: list[float] = []

    def check(self) -> None:
        server = self._server
        if server.is_running and not self._is_back and server.is_ready():
            self._is_back = True
            _warn(f"{server.name} is back")
        if self.has_failed or server.is_running:
            return
        now = time.monotonic()
        self._deaths = [each for each in self._deaths if now - each < DEATHS_WITHIN] + [now]
        self.has_failed = len(self._deaths) >= DEATHS
        next_step = (
            f"for the {DEATHS}rd time in a minute: mend it, then start `folkmoot dev` again"
            if self.has_failed
            else "it is started again"
        )
        was_stopped = server.exit_code == 0
        reason = f"{server.name} was stopped" if was_stopped else server.failure(server.ending())
        _warn(f"{reason}; {next_step}")
        if not self.has_failed:
            self._is_back = False
            try:
                server.launch()
            except (FolkmootError, OSError) as error:  # counts as one more death at the next look
                _warn(f"{server.name} could not be started: {error}")
