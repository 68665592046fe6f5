"""`folkmoot registry`: schemas over HTTP, and the pages beside them."""

import getpass
import os
import socket
import ssl
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import click

from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.monitoring import log_to_stderr, logging_options
from folkmoot.console.options.values import FILE, PORT
from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.errors import AddressTaken, ConfigError, MissingExtra, pip_command

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config

    from folkmoot.schemas.registry.schema_registry import SchemaRegistry

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8081
NEEDED: Final = ("fastavro", "prometheus_client", "starlette", "uvicorn")
TIMEOUT: Final = 10.0
GRACE: Final = 1
"""Seconds that requests in flight may still take when it stops."""


def missing_library() -> str | None:
    """Return a library of the extra `server` that is not installed, None if all are."""
    return next((each for each in NEEDED if find_spec(each) is None), None)


def _hash_password(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Print a line for a file of users, and end: no other option is needed."""
    if name is None or context.resilient_parsing:
        return
    from folkmoot.schemas.rest.users import line_for

    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    print(line_for(name, password))
    context.exit()


@click.command()
@click.option(
    "--host", default=DEFAULT_HOST, help="The address to listen on; 0.0.0.0 is every address."
)
@click.option("--port", type=PORT, metavar="N", default=DEFAULT_PORT, help="0: a free one.")
@click.option(
    "--users",
    type=FILE,
    help="Let only these users in, by basic authentication: lines of --hash-password.",
)
@click.option(
    "--hash-password",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_hash_password,
    help="Ask for a password (or read a line of input), print a line for --users, and end.",
)
@click.option("--tls-certificate", type=FILE, help="Serve https with this certificate (PEM).")
@click.option("--tls-key", type=FILE, help="The certificate's key, if it is in another file.")
@logging_options
@with_zookeeper(TIMEOUT)
def command(
    cluster: Cluster,
    host: str,
    port: int,
    users: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    log_format: str,
    log_level: str,
) -> int:
    """Serve schemas over HTTP to clients that know schema registries that way; ours need no server.

    It keeps nothing: any number of them may run side by side. Runs until SIGTERM or Ctrl-C.
    """
    if (library := missing_library()) is not None:
        raise MissingExtra(
            f"the registry's server needs {library}, which is not installed: {pip_command('server')}"
        )
    from folkmoot.coordination.zookeeper import connect_string
    from folkmoot.schemas.registry.schema_registry import SchemaRegistry

    servers = connect_string.parse(cluster.address).servers
    log_to_stderr(log_format, log_level)
    registry = SchemaRegistry(cluster.connect(create=True), timeout=cluster.timeout)
    with sigterm_like_ctrl_c():
        try:
            app = _app(registry, servers, users, cluster.timeout)
            _serve(app, host, port, tls_certificate, tls_key)
        except KeyboardInterrupt:
            pass
        finally:
            # A thread may be waiting for ZooKeeper, which is waited for no longer.
            closing = Thread(target=registry.close, daemon=True)
            closing.start()
            closing.join(0.2)
    return 0


def _app(registry: "SchemaRegistry", servers: str, users: Path | None, timeout: float) -> "ASGIApp":
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from folkmoot.metrics.registry import RegistryMetrics
    from folkmoot.schemas.rest.app import create_app
    from folkmoot.schemas.rest.request_metrics import RequestMetrics
    from folkmoot.schemas.rest.users import Users

    request_metrics = RequestMetrics()
    metrics = RegistryMetrics(request_metrics)

    async def page(request: Request) -> Response:
        kind, body = metrics.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    pages = [Route("/metrics", page)]
    return create_app(
        registry,
        zookeeper=servers,
        users=None if users is None else Users.read(users),
        metrics=request_metrics,
        pages=pages,
        timeout=timeout,
    )


def _serve(
    app: "ASGIApp", host: str, port: int, certificate: Path | None, key: Path | None
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises AddressTaken, ConfigError."""
    from uvicorn import Config, Server

    config = Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    _load(config)
    with _listening(host, port) as listener:
        address, bound_port = listener.getsockname()[:2]
        scheme = "http" if certificate is None else "https"
        url_host = f"[{address}]" if ":" in address else address
        print(f"registry at {scheme}://{url_host}:{bound_port}", flush=True)
        Server(config).run([listener])


def _load(config: "Config") -> None:
    """Raise ConfigError for a certificate that cannot be used."""
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        raise ConfigError("--tls-key is given without --tls-certificate: give both")
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        files = f"{config.ssl_certfile}, --tls-key {config.ssl_keyfile or 'not given'}"
        raise ConfigError(f"--tls-certificate {files}: cannot be used: {error}") from None


def _listening(host: str, number: int) -> socket.socket:
    """Open a socket that takes connections already. Raises AddressTaken."""
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, number), family=family, backlog=1024)
        # As asyncio sets for its own sockets: heads and bodies are written one by one,
        # and a body would wait 40 ms for the client to acknowledge the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        # socket.create_server says the address in the error's own words, too.
        code = getattr(error, "errno", None) or 0
        reason = os.strerror(code) if code > 0 else getattr(error, "strerror", None) or error
        raise AddressTaken(
            f"the registry cannot listen at {host}:{number}: {reason}: choose another --port or --host"
        ) from None
