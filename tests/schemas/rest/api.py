"""Calls of the registry's server within the process, as a foreign client makes them."""

import json
from typing import Any

from starlette.testclient import TestClient

from folkmoot.coordination.zookeeper.session import Session
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.rest.app import MEDIA_TYPE, create_app
from folkmoot.schemas.rest.users import Users
from tests.memory_zookeeper import MemoryZooKeeper

LONG = {"schema": '"long"'}
STRING = {"schema": '"string"'}


def record(*fields: str, name: str = "R") -> dict[str, str]:
    """The body with a record of longs; a field ending in "=" has a default."""
    made = [
        {"name": each.rstrip("="), "type": "long", **({"default": 0} if each[-1] == "=" else {})}
        for each in fields
    ]
    return {"schema": json.dumps({"type": "record", "name": name, "fields": made})}


class Api:
    """A server of its own; each answer is held to what all of them have in common."""

    def __init__(
        self,
        session: Session | None = None,
        *,
        users: Users | None = None,
        timeout: float = 10.0,
        zookeeper: str = "",
    ) -> None:
        self._users = users
        self._zookeeper = zookeeper
        self._timeout = timeout
        self.serve(SchemaRegistry(session or MemoryZooKeeper().connect()))

    def serve(self, registry: SchemaRegistry) -> None:
        self.registry = registry
        app = create_app(
            registry, zookeeper=self._zookeeper, users=self._users, timeout=self._timeout
        )
        self.client = TestClient(app, raise_server_exceptions=False)

    def __call__(self, line: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """`line` is "GET /path"; a body that is not bytes is sent as JSON → status and JSON."""
        method, _, path = line.partition(" ")
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.request(method, path, content=content, headers=headers)
        assert answer.headers["Content-Type"] == MEDIA_TYPE
        said = answer.json()
        if answer.status_code != 200:
            assert said.keys() == {"error_code", "message"}
            assert said["message"]
            assert str(said["error_code"])[:3] == str(answer.status_code) or (
                answer.status_code == 503
            )
        return answer.status_code, said

    def done(self, line: str, body: Any = None) -> Any:
        status, said = self(line, body)
        assert status == 200, (line, said)
        return said

    def refused(self, line: str, body: Any = None) -> int:
        """The error's code."""
        status, said = self(line, body)
        assert status != 200, (line, said)
        code: int = said["error_code"]
        return code
