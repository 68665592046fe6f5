"""`folkmoot registry`: schemas over HTTP, and what else there is to be seen in a browser."""

import argparse
import getpass
import os
import socket
import ssl
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NoReturn

from folkmoot.console.monitoring.options import add_logging, log_to_stderr
from folkmoot.console.options import add_zookeeper, port, sigterm_like_ctrl_c
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
"""Seconds that requests under way may still take when it is told to stop."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A server for clients that know schema registries by HTTP; ours need none. It keeps nothing: any "
        "number of them may run side by side. It goes on until SIGTERM or Ctrl-C."
    )
    add_zookeeper(parser, timeout=TIMEOUT)
    parser.add_argument(
        "--host",
        default=DEFAULT_HOST,
        help="where to listen; 0.0.0.0 is everywhere (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=port,
        metavar="N",
        default=DEFAULT_PORT,
        help="default: %(default)s; 0: a free one",
    )
    parser.add_argument(
        "--users",
        type=Path,
        metavar="FILE",
        help="let only these in, by basic authentication: lines of --hash-password",
    )
    parser.add_argument(
        "--hash-password",
        action=_HashPassword,
        metavar="NAME",
        help="print a line for --users, of a password asked for (or the first line of the input), and end",
    )
    parser.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="serve https with this certificate and those that vouch for it (PEM)",
    )
    parser.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="the certificate's key (PEM; default: it is in the same file)",
    )
    add_logging(parser)


def missing() -> str | None:
    """A library of the extra `server` that is not installed, None if all are."""
    return next((each for each in NEEDED if find_spec(each) is None), None)


def run(args: argparse.Namespace) -> int:
    if (library := missing()) is not None:
        raise MissingExtra(
            f"the registry's server needs {library}, which is not installed: {pip_command('server')}"
        )
    from functools import partial

    from folkmoot.coordination.connector import connect
    from folkmoot.coordination.zookeeper import connect_string
    from folkmoot.schemas.registry.schema_registry import SchemaRegistry

    connect_string.parse(args.zookeeper)
    log_to_stderr(args.log_format, args.log_level)
    opened = partial(connect, args.zookeeper, connect_timeout=args.timeout, create=True)
    registry = SchemaRegistry(opened, timeout=args.timeout)
    with sigterm_like_ctrl_c():
        try:
            _serve(args, _app(args, registry))
        except KeyboardInterrupt:
            pass
        finally:
            # A thread may be waiting for ZooKeeper, which is waited for no longer.
            closing = Thread(target=registry.close, daemon=True)
            closing.start()
            closing.join(0.2)
    return 0


def _app(args: argparse.Namespace, registry: "SchemaRegistry") -> "ASGIApp":
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from folkmoot.coordination.zookeeper import connect_string
    from folkmoot.metrics.registry import RegistryMetrics
    from folkmoot.schemas.rest.app import create_app
    from folkmoot.schemas.rest.observed import Observed
    from folkmoot.schemas.rest.users import Users

    users = None if args.users is None else Users.read(args.users)
    observed = Observed()
    metrics = RegistryMetrics(observed)

    async def page(request: Request) -> Response:
        kind, body = metrics.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    pages = [Route("/metrics", page)]
    return create_app(
        registry,
        zookeeper=connect_string.parse(args.zookeeper).servers,
        users=users,
        observed=observed,
        pages=pages,
        timeout=args.timeout,
    )


def _serve(args: argparse.Namespace, app: "ASGIApp") -> None:
    """Until SIGTERM or Ctrl-C. Raises AddressTaken, ConfigError."""
    from uvicorn import Config, Server

    config = Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=args.tls_certificate,
        ssl_keyfile=args.tls_key,
    )
    _load(config)
    with _listening(args.host, args.port) as listener:
        host, bound = listener.getsockname()[:2]
        scheme = "http" if args.tls_certificate is None else "https"
        shown = f"[{host}]" if ":" in host else host
        print(f"registry at {scheme}://{shown}:{bound}", flush=True)
        Server(config).run([listener])


def _load(config: "Config") -> None:
    """Raises ConfigError for a certificate that cannot be used."""
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        raise ConfigError("--tls-key is given without --tls-certificate: give both")
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        files = f"{config.ssl_certfile}, --tls-key {config.ssl_keyfile or 'not given'}"
        raise ConfigError(f"--tls-certificate {files}: cannot be used: {error}") from None


def _listening(host: str, number: int) -> socket.socket:
    """A socket that takes connections already. Raises AddressTaken."""
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, number), family=family, backlog=1024)
        # What asyncio does for sockets that it has made itself: heads and bodies are written one by one,
        # and a body would wait 40 ms for the client to acknowledge the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        # socket.create_server says the address in the error's own words, too.
        code = getattr(error, "errno", None) or 0
        why = os.strerror(code) if code > 0 else getattr(error, "strerror", None) or error
        raise AddressTaken(
            f"the registry cannot listen at {host}:{number}: {why}: choose another --port or --host"
        ) from None


class _HashPassword(argparse.Action):
    """Prints a line for a file of users, and ends: nothing else has to be given."""

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, name: Any, *_: object
    ) -> NoReturn:
        from folkmoot.schemas.rest.users import line_for

        if sys.stdin.isatty():
            password = getpass.getpass(f"password of {name}: ")
        else:
            password = sys.stdin.readline().rstrip("\r\n")
        print(line_for(name, password))
        parser.exit()
