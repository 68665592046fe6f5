"""Starlette, or an error that names the pip command which installs it."""

from folkmoot.protocol.errors import MissingExtra, pip_command

try:
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"the registry's server needs starlette, which is not installed: {pip_command('registry')}"
    ) from error

__all__ = [
    "ASGIApp",
    "BaseRoute",
    "ClientDisconnect",
    "HTTPException",
    "Headers",
    "Message",
    "Receive",
    "Request",
    "Response",
    "Route",
    "Scope",
    "Send",
    "Starlette",
]
