"""A small HTTP server beside the process's own work: `/metrics`, `/healthz` and `/readyz`."""

import json
import logging
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Thread
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.metrics.families import (
    CollectorRegistry,
    Metric,
    PlatformCollector,
    ProcessCollector,
    choose_encoder,
)
from folkmoot.protocol.errors import AddressTaken, FolkmootError

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT: Final = 10.0
"""Seconds that a client of the pages may stay silent."""


class Page(NamedTuple):
    """A health page: its status (200 if `is_well`, else 503) and its JSON."""

    is_well: bool
    details: dict[str, Any]


class MetricsSource(Protocol):
    """The source of the pages; called by threads of the server."""

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics."""
        ...

    def alive(self) -> Page:
        """Return whether the process is healthy; if not, restart it."""
        ...

    def ready(self) -> Page:
        """Return whether it works at the moment."""
        ...


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, source: MetricsSource) -> None:
        """Raises OSError, OverflowError."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(source)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), partial(_Handler, registry, source))

    def server_bind(self) -> None:
        """Bind without http.server's look-up of the own host name, which may block."""
        TCPServer.server_bind(self)


@contextmanager
def serve_metrics(host: str, port: int, source: MetricsSource) -> Iterator[str]:
    """Serve the pages as long as the block lasts → the address, "host:port". Port 0 is a free one.

    Raises AddressTaken.
    """
    host = host.strip("[]")
    try:
        server = _Server(host, port, source)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AddressTaken(
            f"metrics cannot be served at {host}:{port}: {reason}: choose another port or host"
        ) from None
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        url_host = f"[{host}]" if ":" in host else host
        yield f"{url_host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT

    def __init__(self, registry: CollectorRegistry, source: MetricsSource, *arguments: Any) -> None:
        self._registry = registry
        self._source = source
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._respond(HTTPStatus.OK, kind, encode(self._registry))
            elif path in ("/healthz", "/readyz"):
                page = self._source.alive() if path == "/healthz" else self._source.ready()
                status = HTTPStatus.OK if page.is_well else HTTPStatus.SERVICE_UNAVAILABLE
                self._json(status, {"ok": page.is_well, **page.details})
            else:
                known = ["/metrics", "/healthz", "/readyz"]
                self._json(HTTPStatus.NOT_FOUND, {"ok": False, "pages": known})
        except FolkmootError as error:
            self._json(HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "error": str(error)})
        except ConnectionError:
            self.close_connection = True  # who asked is gone
        except Exception:
            logger.exception("%s could not be answered", path)
            details = {"ok": False, "error": "the log of this process says why"}
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, details)

    def _json(self, status: HTTPStatus, details: dict[str, Any]) -> None:
        self._respond(status, "application/json", json.dumps(details).encode() + b"\n")

    def _respond(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: probes come every few seconds."""
