"""Options of an admin."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from folkmoot.coordination.discovery import ClientConfig
from folkmoot.protocol.options import Seconds

_Duration = Annotated[Seconds, Meta(gt=0)]


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of an admin; durations in seconds."""

    client_id: str = "admin"
    session_timeout: _Duration = 10.0
    timeout: _Duration = 30.0
    """A call without a `timeout` of its own ends after this long."""
