"""A command's cluster: `--zookeeper` or `--bootstrap`, and `--timeout`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

import click

from folkmoot.console.options.values import TIME, at_most_one

if TYPE_CHECKING:
    from folkmoot.admin.admin import Admin
    from folkmoot.coordination.zookeeper.session import Connect, Session

ENVIRONMENT: Final = "FOLKMOOT_ZOOKEEPER"
BOOTSTRAP: Final = "FOLKMOOT_BOOTSTRAP"
SESSION_TIMEOUT: Final = 10.0
TIMEOUT: Final = 15.0

_Function = Callable[..., int]
_Decorator = Callable[[_Function], _Function]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster: the address of its ZooKeeper, or of some of its brokers.

    `timeout` is how many seconds ZooKeeper and brokers may take to answer.
    """

    zookeeper: str | None = None
    bootstrap: str | None = None
    timeout: float = TIMEOUT

    @property
    def address(self) -> str:
        return self.zookeeper or self.bootstrap or ""

    def connect(self, *, guarded: bool = False, create: bool = False) -> "Connect":
        """Return what opens a session at its ZooKeeper within the timeout."""
        from folkmoot.coordination.connector import connect

        limit = self.timeout
        return partial(connect, self.address, connect_timeout=limit, guarded=guarded, create=create)

    @contextmanager
    def session(self) -> Iterator["Session"]:
        """Open a short ZooKeeper session. Raises ZooKeeperUnreachable."""
        session = self.connect()(SESSION_TIMEOUT)
        try:
            yield session
        finally:
            session.close()

    def admin(self) -> "Admin":
        from folkmoot.admin.admin import Admin

        return Admin(
            zookeeper=self.connect(),
            client_id="folkmoot-admin",
            session_timeout=SESSION_TIMEOUT,
            timeout=self.timeout,
        )

    def client_options(self, *, guarded: bool = False) -> dict[str, Any]:
        """Return the options by which a producer or consumer finds it."""
        found: dict[str, Any] = {"bootstrap": self.bootstrap}
        if self.zookeeper:
            found = {"zookeeper": self.connect(guarded=guarded)}
        return {**found, "request_timeout": self.timeout}


def timeout_option(default: float = TIMEOUT) -> Callable[[_Function], _Function]:
    return click.option(
        "--timeout",
        type=TIME,
        default=f"{default:g}s",
        help="How long ZooKeeper and brokers may take to answer.",
    )


def with_zookeeper(timeout: float = TIMEOUT) -> _Decorator:
    """Give a command `--zookeeper` and `--timeout`; its function takes a Cluster first."""

    def decorate(function: _Function) -> _Function:
        @click.option(
            "--zookeeper",
            metavar="HOST:PORT[/CHROOT]",
            envvar=ENVIRONMENT,
            show_envvar=True,
            required=True,
            help="The cluster's ZooKeeper.",
        )
        @timeout_option(timeout)
        @wraps(function)
        def command(zookeeper: str, timeout: float, **options: Any) -> int:
            return function(
                _remember_cluster(Cluster(zookeeper=zookeeper, timeout=timeout)), **options
            )

        return command

    return decorate


def with_cluster(function: _Function) -> _Function:
    """As `with_zookeeper`, for commands that need only some brokers: `--bootstrap`."""

    @click.option(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help=f"The cluster's ZooKeeper.  [env var: {ENVIRONMENT}]",
    )
    @click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help=f"Some of its brokers, in place of ZooKeeper.  [env var: {BOOTSTRAP}]",
    )
    @timeout_option()
    @wraps(function)
    def command(
        zookeeper: str | None, bootstrap: str | None, timeout: float, **options: Any
    ) -> int:
        at_most_one(zookeeper=zookeeper, bootstrap=bootstrap)
        if not (zookeeper or bootstrap):
            zookeeper = os.environ.get(ENVIRONMENT)
            bootstrap = None if zookeeper else os.environ.get(BOOTSTRAP)
        if not (zookeeper or bootstrap):
            raise click.UsageError(f"Give --zookeeper or --bootstrap, or set {ENVIRONMENT}.")
        cluster = Cluster(zookeeper=zookeeper, bootstrap=bootstrap, timeout=timeout)
        return function(_remember_cluster(cluster), **options)

    return command


def _remember_cluster(cluster: Cluster) -> Cluster:
    """Note the cluster for the front, whose errors name it."""
    click.get_current_context().find_root().obj = cluster
    return cluster
