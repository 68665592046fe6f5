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

    def text(self, each: SchemaVersion) -> str | None:
        """Return the schema that the id of that version has there."""

    def put(self, each: SchemaVersion) -> None:
        """Make it a live version by its id and number; the subject's mode is IMPORT."""

    def delete(self, each: SchemaVersion) -> None:
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

    def text(self, each: SchemaVersion) -> str | None:
        try:
            return self._registry.get(each.id, subject=each.subject).schema
        except SchemaNotFound:
            return None

    def put(self, each: SchemaVersion) -> None:
        self._registry.register(
            each.subject,
            each.schema,
            references=each.references,
            metadata=each.metadata,
            rule_set=each.rule_set,
            id=each.id,
            version=each.version,
        )

    def delete(self, each: SchemaVersion) -> None:
        self._registry.delete_version(each.subject, each.version)

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
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # no password
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"{shown!r} is no address of a registry: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"{shown!r} is no address of a registry: write http[s]://HOST:PORT")
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
        found = self._ask("GET", f"/subjects?deleted=true&subjectPrefix={quote(prefix, '')}")
        return [each for each in made(found, list[str]) if begins(each, prefix)]

    def versions(self, subjects: Sequence[str]) -> list[SchemaVersion]:
        return [each for subject in subjects for each in self._versions(subject)]

    def _versions(self, subject: str) -> list[SchemaVersion]:
        path = f"{_subject(subject)}/versions"
        live = set(self._numbers(path))
        found = []
        for number in self._numbers(f"{path}?deleted=true"):
            is_deleted = number not in live
            missing: object = {} if is_deleted else None
            shown = self._ask("GET", f"{path}/{number}?deleted=true", missing=missing)
            if shown:
                found.append(version_of({**made(shown, dict[str, Any]), "deleted": is_deleted}))
            else:
                print(
                    f"folkmoot: left out {subject} version {number}, which was deleted: the registry at "
                    f"{self._name} lists it and does not show it",
                    file=sys.stderr,
                )
        return found

    def _numbers(self, path: str) -> list[int]:
        return made(self._ask("GET", path, missing=[]), list[int])

    def text(self, each: SchemaVersion) -> str | None:
        path = f"/schemas/ids/{each.id}?subject={quote(each.subject, '')}"
        return made(self._ask("GET", path, missing={}), dict[str, Any]).get("schema")

    def put(self, each: SchemaVersion) -> None:
        body = json_of(each)
        del body["subject"], body["deleted"]
        answer = self._ask("POST", f"{_subject(each.subject)}/versions", body)
        if (number := made(answer, dict[str, Any]).get("id")) != each.id:
            raise RegistryError(
                f"the registry at {self._name} has given {each.subject} version {each.version} the id "
                f"{number} and not {each.id}: it takes no ids, so delete it there"
            )

    def delete(self, each: SchemaVersion) -> None:
        self._ask("DELETE", f"{_subject(each.subject)}/versions/{each.version}")

    def levels(self, subjects: Sequence[str]) -> dict[str, str]:
        found = {}
        for subject in subjects:
            answer = self._ask("GET", f"/config/{quote(subject, '')}", missing={})
            level = made(answer, dict[str, Any]).get("compatibilityLevel")
            if level is not None:
                found[subject] = level
        return found

    def set_level(self, subject: str, level: str) -> None:
        self._ask("PUT", f"/config/{quote(subject, '')}", {"compatibility": level})

    def mode(self, subject: str) -> str | None:
        found = self._ask("GET", f"/mode/{quote(subject, '')}", missing={})
        return made(found, dict[str, Any]).get("mode")

    def set_mode(self, subject: str, mode: str | None, *, force: bool = False) -> None:
        path = f"/mode/{quote(subject, '')}"
        if mode is None:
            self._ask("DELETE", path)
        else:
            answer = self._ask(
                "PUT", f"{path}?force={str(force).lower()}", {"mode": mode}, missing={}
            )
            if not answer:
                raise RegistryError(
                    f"the registry at {self._name} has no modes: schemas cannot keep their ids there"
                )

    def _ask(self, method: str, path: str, body: object = None, *, missing: object = None) -> Any:
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


def begins(subject: str, prefix: str) -> bool:
    """Return whether `prefix` chooses a subject; `:*:` before it chooses all contexts."""
    if prefix.startswith(ALL_CONTEXTS):
        return parse(subject).name.startswith(prefix.removeprefix(ALL_CONTEXTS))
    return subject.startswith(prefix)


def is_url(text: str) -> bool:
    return "://" in text


@contextmanager
def remote(url: str, timeout: float) -> Iterator[RemoteRegistry]:
    """Open a registry behind HTTP. Raises ConfigError for what is no address of one."""
    registry = RemoteRegistry(url, timeout)
    try:
        yield registry
    finally:
        registry.close()


def json_of(each: SchemaVersion) -> dict[str, Any]:
    """Return a version as the REST interface shows it, and whether it is deleted."""
    shown: dict[str, Any] = {
        "subject": each.subject,
        "version": each.version,
        "id": each.id,
        "schemaType": "AVRO",
        "schema": each.schema,
        "deleted": each.deleted,
    }
    if each.references:
        shown["references"] = to_builtins(each.references)
    if each.metadata is not None:
        shown["metadata"] = each.metadata
    if each.rule_set is not None:
        shown["ruleSet"] = each.rule_set
    return shown


def version_of(given: object) -> SchemaVersion:
    """Read what `json_of` makes. Raises RegistryError for other shapes, and other than Avro schemas."""
    shown = made(given, dict[str, Any])
    kind = shown.get("schemaType") or "AVRO"
    if kind != "AVRO":
        where = f"{shown.get('subject')} version {shown.get('version')}"
        raise RegistryError(f"{where} is a schema of type {kind}: only AVRO can be kept here")
    fields = {name: shown[name] for name in SchemaVersion.__struct_fields__ if name in shown}
    if "ruleSet" in shown:
        fields["rule_set"] = shown["ruleSet"]
    fields["references"] = shown.get("references") or ()
    return made(fields, SchemaVersion)


def made(given: object, kind: type[_T]) -> _T:
    """Convert what a registry answers. Raises RegistryError for other shapes."""
    try:
        return convert(given, kind)
    except ValidationError as error:
        raise RegistryError(f"this is not what a registry says: {error}") from None


def _subject(name: str) -> str:
    return f"/subjects/{quote(name, '')}"
