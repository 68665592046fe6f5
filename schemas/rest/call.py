"""One call as the functions behind the routes see it: what was asked for, typed."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from folkmoot.coordination.schemas.nodes import MAX_NUMBER
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.protocol.errors import InvalidSubject, InvalidVersion, RegistryError
from folkmoot.schemas.registry.schema_registry import SchemaRegistry

_T = TypeVar("_T")


class BadRequest(RegistryError):
    """The body is not a JSON object."""

    error_code = 400


class NotFound(RegistryError):
    """There is nothing at this path."""

    error_code = 404


class Unprocessable(RegistryError, ValueError):
    """A parameter, or the body, is JSON of another shape than the call takes."""

    error_code = 422


class SchemaBody(Struct, rename="camel"):
    """The body with a schema. Other fields are ignored."""

    schema: str
    schema_type: str | None = None
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


class LevelBody(Struct, rename="camel"):
    """The body with a compatibility level; clients write it under either name."""

    compatibility: str | UnsetType = UNSET
    compatibility_level: str | UnsetType = UNSET


class ModeBody(Struct):
    mode: str


class Call:
    """The request. `path` has the parts of the path as they were sent, percent-encoded."""

    __slots__ = ("_path", "_query", "body", "registry")

    def __init__(
        self,
        registry: SchemaRegistry,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes,
    ) -> None:
        self.registry = registry
        self.body = body
        self._path = path
        self._query = query

    def part(self, name: str) -> str:
        """A part of the path. Raises InvalidSubject for bytes that are no text."""
        try:
            return unquote(self._path[name], errors="strict")
        except UnicodeDecodeError:
            raise InvalidSubject(f"{self._path[name]} is not UTF-8, percent-encoded") from None

    @property
    def subject(self) -> str:
        return self._in_path_context(self.part("subject"))

    @property
    def scope(self) -> str | None:
        """The subject or context of a level or mode in the path; None means all."""
        if "subject" in self._path:
            return self.subject
        return self._in_path_context("") if "context" in self._path else None

    @property
    def query_subject(self) -> str:
        """The subject in the query, whose context says which ids are meant."""
        return self._in_path_context(self._query.get("subject", ""))

    @property
    def prefix(self) -> str | None:
        """The prefix of the requested subjects, and their context; None: all of all contexts."""
        found = self._query.get("subjectPrefix")
        return (
            found
            if found is None and "context" not in self._path
            else self._in_path_context(found or "")
        )

    def _in_path_context(self, name: str) -> str:
        """A name that says no context lies in the one that the path begins with, /contexts/.name.

        Raises InvalidSubject.
        """
        if "context" not in self._path or name.startswith((":.", ":*:")):
            return name
        context = self.part("context").strip(":").removeprefix(".")
        if ":" in context:
            raise InvalidSubject(
                f"{context:.80} is no context: use one as in /contexts/.name/subjects"
            )
        return f":.{context}:{name}"

    @property
    def id(self) -> int:
        """The id in the path. Raises NotFound."""
        number = _number(self.part("id"))
        if number is None:
            raise NotFound(f"{self.part('id')} is no id: ids are numbers from 1 to {MAX_NUMBER}")
        return number

    @property
    def version(self) -> int | Literal["latest"]:
        """The version in the path; -1 is the latest, too. Raises InvalidVersion."""
        text = self.part("version")
        if text in ("latest", "-1"):
            return "latest"
        number = _number(text)
        if not number:
            raise InvalidVersion(
                f'{text} is no version: versions are numbers from 1 to {MAX_NUMBER}, or "latest"'
            )
        return number

    def flag(self, name: str) -> bool:
        """A parameter that is true or not: clients write it in either case. Absent, it is not."""
        return self._query.get(name, "").lower() == "true"

    def page(self, found: Sequence[_T]) -> Sequence[_T]:
        """From `offset` on, as many as `limit` says. Raises Unprocessable."""
        offset, limit = self.window()
        return found[offset:] if limit is None else found[offset : offset + limit]

    def window(self) -> tuple[int, int | None]:
        """`offset` and `limit`; None, all, if that is negative. Raises Unprocessable."""
        offset, limit = self._integer("offset", 0), self._integer("limit", -1)
        if offset < 0:
            raise Unprocessable(f"offset={offset} is negative")
        return offset, None if limit < 0 else limit

    def _integer(self, name: str, default: int) -> int:
        text = self._query.get(name)
        if text is None:
            return default
        number = _number(text.removeprefix("-"))
        if number is None:
            raise Unprocessable(f"{name}={text:.80} is not a number of 32 bits")
        return -number if text.startswith("-") else number

    def read(self, shape: type[_T], error_type: type[RegistryError] = Unprocessable) -> _T:
        """The body, whatever Content-Type it has. Raises BadRequest, and `error_type` for another shape."""
        if not self.body.lstrip().startswith(b"{"):
            raise BadRequest("the body is not a JSON object")
        try:
            return msgspec.json.decode(self.body, type=shape)
        except msgspec.ValidationError as error:
            raise error_type(f"the body is not as this call takes it: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise BadRequest("the body is nested too deeply") from None


def _number(text: str) -> int | None:
    """A number of 31 bits in plain digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    number = int(text)
    return number if number <= MAX_NUMBER else None
