"""`folkmoot dev`: a whole cluster on this machine, until Ctrl-C."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from folkmoot.console import registry
from folkmoot.console.monitoring.options import add_logging
from folkmoot.console.options import (
    SESSION_TIMEOUT,
    add_timeout,
    at_least_one,
    connecting,
    port,
    sigterm_like_ctrl_c,
    whole_number,
)
from folkmoot.protocol.errors import ConfigError, FolkmootError, pip_command

if TYPE_CHECKING:
    from folkmoot.console.embedded import EmbeddedZooKeeper
    from folkmoot.console.processes import EmbeddedCluster, ServerProcess

LOOK_EVERY: Final = 0.5
MAX_BROKERS: Final = 32
REPLICAS: Final = 3
DEATHS: Final = 3
DEATHS_WITHIN: Final = 60.0
"""What dies so often in so many seconds is not started again."""
REGISTRY_OFFSET: Final = 9
BROKERS_OFFSET: Final = 10
"""From `--port`, behind the ports of the largest ensemble."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=_directory,
        metavar="DIR",
        default=default_directory(),
        help="where everything is kept, and found again by the next run (default: %(default)s)",
    )
    parser.add_argument(
        "--brokers", type=at_least_one, metavar="N", default=3, help="default: %(default)s"
    )
    parser.add_argument(
        "--replicas",
        type=at_least_one,
        metavar="N",
        help=f"of topics that are created without --replicas (default: {REPLICAS}, or as many as there "
        "are brokers)",
    )
    parser.add_argument(
        "--zookeepers",
        type=whole_number,
        choices=(1, 3, 5),
        help="1, or an ensemble of so many (default: what DIR was begun with, else 1)",
    )
    parser.add_argument(
        "--port",
        type=port,
        metavar="PORT",
        default=0,
        help="one base port for everything: ZooKeeper listens at PORT (an ensemble from PORT on), the "
        f"schema registry at PORT + {REGISTRY_OFFSET}, brokers from PORT + {BROKERS_OFFSET} on (default: the "
        "ports of the last run, or free ones)",
    )
    parser.add_argument(
        "--zookeeper-jars",
        type=_directory,
        metavar="DIR",
        help="where ZooKeeper's jars lie, such as lib/ of a release of it (default: folkmoot-zookeeper's, "
        "else PySpark's, else those of Debian's libzookeeper-java)",
    )
    parser.add_argument(
        "--broker-port",
        type=port,
        metavar="FIRST",
        default=0,
        help=f"port of broker 1, the next one of broker 2 and so on (default: --port + {BROKERS_OFFSET}, or "
        "those of the last run, or free ones)",
    )
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="FIRST",
        help="have broker 1 serve /metrics, /healthz and /readyz there, broker 2 at the next port and so "
        "on; 0: at free ports (default: none does)",
    )
    _add_registry(parser)
    add_logging(parser)
    # Not FOLKMOOT_ZOOKEEPER: who has that set for clients still wants a cluster of his own here.
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="use this ZooKeeper instead of starting one",
    )
    add_timeout(parser)


def _add_registry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry-port",
        type=port,
        metavar="PORT",
        default=0,
        help=f"of the schema registry's server (default: --port + {REGISTRY_OFFSET}, or that of the last "
        "run, or a free one)",
    )


def run(args: argparse.Namespace) -> int:
    # Imported here, so that the help of the command line does not wait for them.
    from folkmoot.console.embedded import ZooKeeperConfig
    from folkmoot.console.processes import EmbeddedCluster

    _check(args)
    if args.zookeeper:  # said once and at once, and not as the end of each of the processes
        connecting(args, create=True)(SESSION_TIMEOUT).close()
    cluster = EmbeddedCluster(
        args.data,
        brokers=args.brokers,
        zookeeper=args.zookeeper or ZooKeeperConfig(port=args.port, jars=args.zookeeper_jars),
        first_broker_port=args.broker_port or _from_base(args, BROKERS_OFFSET),
        zookeepers=args.zookeepers,
        default_replicas=args.replicas or min(REPLICAS, args.brokers),
        first_metrics_port=args.metrics_port,
        registry_port=None
        if registry.missing()
        else args.registry_port or _from_base(args, REGISTRY_OFFSET),
        log_options=_log_options(args),
    )
    with sigterm_like_ctrl_c():
        try:
            if left_out := cluster.left_out():
                _complain(
                    f"{args.data} has data of {_brokers(left_out)}, not started with --brokers "
                    f"{args.brokers}: what only that has is missing until --brokers {left_out[-1]}"
                )
            with cluster:
                _say_where_everything_is(cluster)
                return _watch(cluster)
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


def default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "folkmoot" / "dev"


def _check(args: argparse.Namespace) -> None:
    """That the numbers go with each other. Raises ConfigError."""
    if args.brokers > MAX_BROKERS:
        raise ConfigError(
            f"--brokers {args.brokers} is too many for one machine: use at most {MAX_BROKERS}"
        )
    if args.replicas is not None and args.replicas > args.brokers:
        raise ConfigError(
            f"--replicas {args.replicas} is above --brokers {args.brokers}: no topic could be created"
        )
    if args.zookeeper and (args.zookeepers or args.port or args.zookeeper_jars):
        raise ConfigError(
            "--zookeeper starts none: leave out --zookeepers, --zookeeper-jars and --port"
        )
    last = {
        "--port": (args.port, BROKERS_OFFSET + args.brokers if args.port else 1),
        "--broker-port": (args.broker_port, args.brokers),
        "--metrics-port": (args.metrics_port or 1, args.brokers),
    }
    for option, (first, count) in last.items():
        if first + count - 1 > 65_535:
            raise ConfigError(f"{option} {first} leaves no port for all {count}: use a lower one")


def _log_options(args: argparse.Namespace) -> list[str]:
    """What brokers and registry get of these options, if it is not their default."""
    given = {"--log-format": args.log_format, "--log-level": args.log_level}
    defaults = {"--log-format": "text", "--log-level": "info"}
    return [
        word for name, value in given.items() if value != defaults[name] for word in (name, value)
    ]


def _from_base(args: argparse.Namespace, offset: int) -> int:
    """A port at an offset from `--port`; 0, any free one, without that."""
    return args.port + offset if args.port else 0


def _brokers(numbers: list[int]) -> str:
    return f"broker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _complain(text: str) -> None:
    print(f"folkmoot: {text}", file=sys.stderr, flush=True)


def _say_where_everything_is(cluster: "EmbeddedCluster") -> None:
    lines = [f"zookeeper  {cluster.zookeeper}"]
    for broker in cluster.brokers:
        metrics = f"   {broker.metrics}" if broker.metrics else ""
        lines.append(f"broker {broker.broker_id}   {broker.address}{metrics}")
    none = f"none: {pip_command('server')} brings it"
    lines.append(f"registry   {none if cluster.registry is None else cluster.registry.url}")
    lines += [f"data       {cluster.directory}", ""]
    lines += [f"export FOLKMOOT_ZOOKEEPER={cluster.zookeeper}", "Ctrl-C stops all of it."]
    print("\n".join(lines), flush=True)


def _watch(cluster: "EmbeddedCluster") -> int:
    """Until a signal comes: starts again what dies, unless it dies again and again.

    Without one broker or the registry the rest goes on; without ZooKeeper nothing does.
    """
    servers = [_Watched(server) for server in cluster.servers]
    watched = [*servers, *(_Watched(broker) for broker in cluster.brokers)]
    if cluster.registry is not None:
        watched.append(_Watched(cluster.registry))
    while not any(server.given_up for server in servers):
        for each in watched:
            each.look()
        time.sleep(LOOK_EVERY)
    return 1


class _Watched:
    """One process of the cluster, and when it has died."""

    def __init__(self, process: "EmbeddedZooKeeper | ServerProcess") -> None:
        self.process = process
        self.given_up = False
        self._is_back = True
        self._deaths: list[float] = []

    def look(self) -> None:
        child = self.process.child
        if self.given_up or (self._is_back and child.is_running):
            return
        if child.is_running:
            self._is_back = self.process.is_ready()
            if self._is_back:
                _complain(f"{child.name} is back")
            return
        now = time.monotonic()
        self._deaths = [each for each in self._deaths if now - each < DEATHS_WITHIN] + [now]
        self.given_up = len(self._deaths) >= DEATHS
        if self.given_up:
            then = f"for the {DEATHS}rd time in a minute: mend it, then start `folkmoot dev` again"
        else:
            then = "it is started again"
        how = f"{child.name} was stopped" if child.exit_code == 0 else child.failure(child.ending())
        _complain(f"{how}; {then}")
        if not self.given_up:
            self._is_back = False
            try:
                self.process.launch()
            except (FolkmootError, OSError) as error:  # counts as one more death at the next look
                _complain(f"{child.name} could not be started: {error}")


def _directory(text: str) -> Path:
    if not text:  # of an empty variable; it would be the present directory
        raise argparse.ArgumentTypeError("it is empty: name a directory")
    return Path(text)
