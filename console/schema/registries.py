"""Registries that schemas are copied from and to: this cluster's, and one behind HTTP."""

import http.client
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

from msgspec import ValidationError, convert, to_builtins

from folkmoot.console.exit_codes import RegistryUnreachable
from folkmoot.coordination.schemas.names import parse
from folkmoot.coordination.schemas.versions import SchemaVersion
from folkmoot.protocol.errors import (
    ConfigError,
    NoSubjectMode,
    RegistryError,
    SchemaNotFound,
)
from folkmoot.schemas.registry.schema_registry import ALL_CONTEXTS, SchemaRegistry

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404

_T = TypeVar("_T")


class RegistrySource(Protocol):
    """A source of schemas. Missing ones are no error."""

    def subjects(self, prefix: str) -> list[str]:
        """Return all that begin with this, deleted ones, too."""

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        """Return all versions of these subjects, deleted ones, too."""

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        """Return the compatibility levels of those that have one of their own."""


class RegistryTarget(RegistrySource, Protocol):
    """A registry that schemas are written to."""

    def text(self, version: SchemaVersion) -> str | None:
        """Return the schema that the id of that version has there."""

    def put(self, version: SchemaVersion) -> None:
        """Make it a live version by its id and number; the subject's mode is IMPORT."""

    def delete(self, version: SchemaVersion) -> None:
        """Delete it softly."""

    def set_level(self, subject: str, level: str) -> None: ...

    def mode(self, subject: str) -> str | None:
        """Return its own mode."""

    def set_mode(self, subject: str, mode: str | None, *, force: bool = False) -> None:
        """Set its own mode; None takes it away."""


class LocalRegistry:
    """The registry of this cluster."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def subjects(self, prefix: str) -> list[str]:
        return self._registry.subjects(prefix, deleted=True)

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        return self._registry.schemas_of(subjects, deleted=True)

    def text(self, version: SchemaVersion) -> str | None:
        try:
            return self._registry.get(version.id, subject=version.subject).schema
        except SchemaNotFound:
            return None

    def put(self, version: SchemaVersion) -> None:
        self._registry.register(
            version.subject,
            version.schema,
            references=version.references,
            metadata=version.metadata,
            rule_set=version.rule_set,
            id=version.id,
            version=version.version,
        )

    def delete(self, version: SchemaVersion) -> None:
        self._registry.delete_version(version.subject, version.version)

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        return self._registry.compatibilities(subjects)

    def set_level(self, subject: str, level: str) -> None:
        self._registry.set_compatibility(level, subject)

    def mode(self, subject: str) -> str | None:
        try:
            return self._registry.mode(subject)
        except NoSubjectMode:
            return None

    def set_mode(self, subject: str, mode: str | None, *, force: bool = False) -> None:
        if mode is None:
            self._registry.delete_mode(subject)
        else:
            self._registry.set_mode(mode, subject, force=force)


class RemoteRegistry:
    """A registry behind HTTP, with Confluent's interface. One connection; one thread uses it."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        public_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # no password
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"{public_url!r} is no address of a registry: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"{public_url!r} is no address of a registry: write http[s]://HOST:PORT"
            )
        self._name = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
        self._path = parts.path.rstrip("/")
        self._headers = {
            "Accept": f"{CONTENT_TYPE}, application/json",
            "Content-Type": CONTENT_TYPE,
        }
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        secure = parts.scheme == "https"
        connection = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = connection(host, port, timeout=timeout)

    def close(self) -> None:
        self._connection.close()

    def subjects(self, prefix: str) -> list[str]:
        found = self._request("GET", f"/subjects?deleted=true&subjectPrefix={quote(prefix, '')}")
        return [each for each in convert_response(found, list[str]) if matches_prefix(each, prefix)]

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        return [each for subject in subjects for each in self._versions(subject)]

    def _versions(self, subject: str) -> list[SchemaVersion]:
        path = f"{_subject_path(subject)}/versions"
        live = set(self._numbers(path))
        found = []
        for number in self._numbers(f"{path}?deleted=true"):
            is_deleted = number not in live
            missing: object = {} if is_deleted else None
            response = self._request("GET", f"{path}/{number}?deleted=true", missing=missing)
            if response:
                found.append(
                    parse_version(
                        {**convert_response(response, dict[str, Any]), "deleted": is_deleted}
                    )
                )
            else:
                print(
                    f"folkmoot: left out {subject} version {number}, which was deleted: the registry at "
                    f"{self._name} lists it and does not show it",
                    file=sys.stderr,
                )
        return found

    def _numbers(self, path: str) -> list[int]:
        return convert_response(self._request("GET", path, missing=[]), list[int])

    def text(self, version: SchemaVersion) -> str | None:
        path = f"/schemas/ids/{version.id}?subject={quote(version.subject, '')}"
        return convert_response(self._request("GET", path, missing={}), dict[str, Any]).get(
            "schema"
        )

    def put(self, version: SchemaVersion) -> None:
        body = version_json(version)
        del body["subject"], body["deleted"]
        answer = self._request("POST", f"{_subject_path(version.subject)}/versions", body)
        if (number := convert_response(answer, dict[str, Any]).get("id")) != version.id:
            raise RegistryError(
                f"the registry at {self._name} has given {version.subject} version {version.version} the id "
                f"{number} and not {version.id}: it takes no ids, so delete it there"
            )

    def delete(self, version: SchemaVersion) -> None:
        self._request("DELETE", f"{_subject_path(version.subject)}/versions/{version.version}")

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        found = {}
        for subject in subjects:
            answer = self._request("GET", f"/config/{quote(subject, '')}", missing={})
            level = convert_response(answer, dict[str, Any]).get("compatibilityLevel")
            if level is not None:
                found[subject] = level
        return found

    def set_level(self, subject: str, level: str) -> None:
        self._request("PUT", f"/config/{quote(subject, '')}", {"compatibility": level})

    def mode(self, subject: str) -> str | None:
        found = self._request("GET", f"/mode/{quote(subject, '')}", missing={})
        return convert_response(found, dict[str, Any]).get("mode")

    def set_mode(self, subject: str, mode: str | None, *, force: bool = False) -> None:
        path = f"/mode/{quote(subject, '')}"
        if mode is None:
            self._request("DELETE", path)
        else:
            answer = self._request(
                "PUT", f"{path}?force={str(force).lower()}", {"mode": mode}, missing={}
            )
            if not answer:
                raise RegistryError(
                    f"the registry at {self._name} has no modes: schemas cannot keep their ids there"
                )

    def _request(
        self, method: str, path: str, body: object = None, *, missing: object = None
    ) -> Any:
        """Return its answer, or `missing`, if that is not None, for a 404."""
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, self._path + path, data, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RegistryUnreachable(
                f"the registry at {self._name} does not answer: {' '.join(str(error).split())}"
            ) from None
        except BaseException:
            self._connection.close()  # a request may be half sent; the next one needs a new connection
            raise
        if response.status == _NOT_FOUND and missing is not None:
            return missing
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if response.status == http.client.OK and answer is not None:
            return answer
        reason = answer.get("message") if isinstance(answer, dict) else None
        raise RegistryError(
            f"the registry at {self._name} answers {method} {path} with {response.status}: "
            f"{reason or response.reason}"
        )


def matches_prefix(subject: str, prefix: str) -> bool:
    """Return whether `prefix` chooses a subject; `:*:` before it chooses all contexts."""
    if prefix.startswith(ALL_CONTEXTS):
        return parse(subject).name.startswith(prefix.removeprefix(ALL_CONTEXTS))
    return subject.startswith(prefix)


def is_url(text: str) -> bool:
    return "://" in text


@contextmanager
def open_remote(url: str, timeout: float) -> Iterator[RemoteRegistry]:
    """Open a registry behind HTTP. Raises ConfigError for what is no address of one."""
    registry = RemoteRegistry(url, timeout)
    try:
        yield registry
    finally:
        registry.close()


def version_json(version: SchemaVersion) -> dict[str, Any]:
    """Return a version as the REST interface shows it, and whether it is deleted."""
    body: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "schemaType": "AVRO",
        "schema": version.schema,
        "deleted": version.deleted,
    }
    if version.references:
        body["references"] = to_builtins(version.references)
    if version.metadata is not None:
        body["metadata"] = version.metadata
    if version.rule_set is not None:
        body["ruleSet"] = version.rule_set
    return body


def parse_version(value: object) -> SchemaVersion:
    """Read what `version_json` makes. Raises RegistryError for other shapes, and other than Avro schemas."""
    body = convert_response(value, dict[str, Any])
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        where = f"{body.get('subject')} version {body.get('version')}"
        raise RegistryError(f"{where} is a schema of type {kind}: only AVRO can be kept here")
    fields = {name: body[name] for name in SchemaVersion.__struct_fields__ if name in body}
    if "ruleSet" in body:
        fields["rule_set"] = body["ruleSet"]
    fields["references"] = body.get("references") or ()
    return convert_response(fields, SchemaVersion)


def convert_response(value: object, kind: type[_T]) -> _T:
    """Convert what a registry answers. Raises RegistryError for other shapes."""
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise RegistryError(f"this is not what a registry says: {error}") from None


def _subject_path(name: str) -> str:
    return f"/subjects/{quote(name, '')}"
