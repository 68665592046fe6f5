"""The registry as an ASGI application: routes, bodies, errors, and what is asked for most often."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from folkmoot.coordination.zookeeper.operations import ZooKeeperError
from folkmoot.protocol.errors import (
    ClosedError,
    FolkmootError,
    NoCluster,
    Overloaded,
    RegistryError,
    RequestTimeout,
    ZooKeeperUnreachable,
)
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.rest.call import Call
from folkmoot.schemas.rest.calls import CALLS, Function, Json, register, schema
from folkmoot.schemas.rest.passwords import PasswordChecks
from folkmoot.schemas.rest.request_metrics import RequestMetrics
from folkmoot.schemas.rest.users import Users
from folkmoot.schemas.rest.workers import Workers

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
TIMEOUT: Final = 10.0
BODY_TIMEOUT: Final = 60.0
THREADS: Final = 16
REGISTRARS: Final = 2
"""Threads of those for registrations, which all write one counter: more would only be refused more often."""
MAX_BODY: Final = 2 << 20
"""Bytes. The largest schema that is kept has a quarter of it, which JSON's escapes may double."""
MAX_DISCARDED: Final = 16 * MAX_BODY
"""Bytes that are read of a body that is too large, so that its client gets the response."""
MAX_CACHED_BYTES: Final = 8 << 20
"""Bytes of answers."""

STORE_FAILED: Final = 50001
STORE_TIMED_OUT: Final = 50002
UNAUTHORIZED: Final = 40101
STORE_ERRORS: Final = (ZooKeeperUnreachable, ZooKeeperError, NoCluster, ClosedError, Overloaded)


class RegistryResponse(Response):
    """Every response of the registry, errors too."""

    media_type = MEDIA_TYPE


def create_app(
    registry: SchemaRegistry,
    *,
    zookeeper: str = "",
    users: Users | None = None,
    metrics: RequestMetrics | None = None,
    pages: Iterable[BaseRoute] = (),
    timeout: float = TIMEOUT,
) -> ASGIApp:
    """The registry's calls, `/healthz` and `/readyz`, and further `pages`.

    With `users` only they are let in, but for `/healthz`. A call that ZooKeeper does not answer
    within `timeout` seconds is answered with status 503, which names its address, `zookeeper`. `metrics`
    counts the requests.
    """
    calls = _Calls(registry, timeout, zookeeper)
    by_id = _ById(calls).respond
    routes: list[BaseRoute] = []
    for path, methods in CALLS.items():
        endpoint = by_id if methods.get("GET") is schema else partial(calls.respond, methods)
        routes.append(Route(path, endpoint, methods=list(methods)))
    in_context = Router(list(routes), redirect_slashes=False)
    routes += [
        Mount("/contexts/{context}", in_context),
        Route("/healthz", _alive),
        Route("/readyz", partial(calls.respond, {"GET": _ready})),
        *pages,
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        HTTPException: _http_error,
        FolkmootError: _error,
        Exception: _internal_error,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _Middleware(app, users, metrics or RequestMetrics())


class _Calls:
    """Has calls carried out on threads."""

    def __init__(self, registry: SchemaRegistry, timeout: float, zookeeper: str = "") -> None:
        self._registry = registry
        self._zookeeper = zookeeper
        self._workers = Workers(THREADS, timeout)
        self._registrars = Workers(REGISTRARS, timeout)

    async def respond(self, methods: Mapping[str, Function], request: Request) -> RegistryResponse:
        function = methods["GET" if request.method == "HEAD" else request.method]
        body = await _body(request) if request.method in ("POST", "PUT") else b""
        call = self.call(request, body)
        workers = self._registrars if function is register else self._workers
        try:
            return RegistryResponse(await workers.run(lambda: msgspec.json.encode(function(call))))
        except (RequestTimeout, ZooKeeperUnreachable) as error:
            message = str(error)
            if self._zookeeper in message:
                raise
            raise type(error)(f"{message} (ZooKeeper: {self._zookeeper})") from None

    def call(self, request: Request, body: bytes = b"") -> Call:
        return Call(self._registry, request.path_params, request.query_params, body)


class _ById:
    """Schemas by id, which never change: those asked for before are answered on the event loop."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._responses: dict[tuple[str, str], RegistryResponse] = {}
        self._bytes = 0

    async def respond(self, request: Request) -> RegistryResponse:
        call = self._calls.call(request)
        key = (call.part("id"), _context(call.query_subject))
        response = self._responses.get(key)
        if response is None:
            response = await self._calls.respond({"GET": schema}, request)
            self._remember(key, response)
        return response

    def _remember(self, key: tuple[str, str], response: RegistryResponse) -> None:
        if key in self._responses:  # asked for twice at the same time
            return
        self._responses[key] = response
        self._bytes += _size(response)
        while self._bytes > MAX_CACHED_BYTES:
            self._bytes -= _size(self._responses.pop(next(iter(self._responses))))


def _size(response: RegistryResponse) -> int:
    """Bytes that a response takes, about."""
    return 1_000 + len(response.body)


class _Middleware:
    """Before the routes: lets users in, counts, and has the path taken as it was sent.

    Servers decode the path before it is routed, and a subject may have slashes: `a%2Fversions`.
    """

    def __init__(self, app: ASGIApp, users: Users | None, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._passwords = PasswordChecks(users) if users is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["raw_path"].decode("utf-8", "replace")
        scope["path"] = path.rstrip("/") or "/"  # some clients ask for /config/
        try:
            rejection = await self._check_authorization(scope)
            await (rejection or self._app)(scope, receive, send_and_note)
        except asyncio.CancelledError:
            # The server ends, and has waited for long enough.
            if not status:
                ending = ClosedError("the server ends: ask another one, or again")
                await _error_to_response(ending)(scope, receive, send_and_note)
        finally:
            self._metrics.note(scope["method"], status, time.perf_counter() - started)

    async def _check_authorization(self, scope: Scope) -> Response | None:
        if self._passwords is None or scope["path"] == "/healthz":
            return None
        authorization = Headers(scope=scope).get("authorization", "")
        client = scope.get("client")
        try:
            if await self._passwords.is_right(authorization, client[0] if client else ""):
                return None
        except FolkmootError as error:
            return _error_to_response(error)
        why = "wrong user or password" if authorization else "name a user and a password"
        response = _error_response(HTTPStatus.UNAUTHORIZED, UNAUTHORIZED, why)
        response.headers["WWW-Authenticate"] = 'Basic realm="folkmoot"'
        return response


async def _body(request: Request) -> bytes:
    """The whole body. Raises HTTPException with 413 if it is too large, 408 if it does not come."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BODY:
                    chunks.append(chunk)
                elif size > MAX_DISCARDED:
                    break
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT) from None
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the client has gone") from None
    if size > MAX_BODY:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {MAX_BODY} bytes"
        )
    return b"".join(chunks)


def _context(subject: str) -> str:
    """Return the context of `:.name:subject`, which chooses the ids."""
    return subject[: subject.find(":", 2) + 1] if subject.startswith(":.") else ""


async def _alive(request: Request) -> Response:
    return RegistryResponse(b'{"ok":true}')


def _ready(call: Call) -> Json:
    call.registry.compatibility()
    return {"ok": True}


def _error_response(status: int, code: int, message: str) -> RegistryResponse:
    content = msgspec.json.encode({"error_code": code, "message": message})
    return RegistryResponse(content, status_code=status)


async def _error(request: Request, error: FolkmootError) -> Response:
    return _error_to_response(error)


def _error_to_response(error: FolkmootError) -> RegistryResponse:
    status: int
    if isinstance(error, RegistryError):
        code = error.error_code
        status = code // 100 if code > 999 else code
    elif isinstance(error, STORE_ERRORS):
        status, code = HTTPStatus.SERVICE_UNAVAILABLE, STORE_FAILED
    elif isinstance(error, RequestTimeout):
        status, code = HTTPStatus.SERVICE_UNAVAILABLE, STORE_TIMED_OUT
    else:
        status = code = HTTPStatus.INTERNAL_SERVER_ERROR
    return _error_response(status, code, str(error))


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer unknown paths and methods."""
    response = _error_response(error.status_code, error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(request: Request, error: Exception) -> Response:
    """An error of ours; the server logs it."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return _error_response(status, status, "the log of the server says why")
