"""Python values to Avro bytes, in the wire format of `wire`."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, Generic, Literal, Self, overload

from folkmoot.coordination.schemas.names import parse
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.protocol.errors import ConfigError, InvalidSchema, SerializationError
from folkmoot.schemas.avro.identity import Schema
from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.derivation import avro_schema
from folkmoot.schemas.values.encoding import Encode, encoder
from folkmoot.schemas.values.serialization import VALUE, Field, T, WouldWait
from folkmoot.schemas.values.wire import FRAME, MAGIC

MAX_PREPARED: Final = 1_000
"""Topics and classes whose schema is kept; those of more are asked for again when they are needed."""

Strategy = Literal["topic", "record", "topic-record"]
_Prepared = tuple[bytes, Encode, int, str]
"""The prefix of a value, the encoder of its body, the id, and the schema's name."""


class AvroSerializer(Generic[T]):
    """Values to bytes by an Avro schema that a registry knows, for `Producer(value_serializer=…)`.

    `schema` is JSON or the same as Python values, for dicts; or a class (dataclass or Struct, also
    `list[Order]`), which the schema is derived from (`avro_schema`). Without one it is derived from the
    class of each value. Objects of classes are taken with any schema that has their fields.

    The subject is `subject`, or `strategy` derives it from the topic and the full name of the schema's
    record: `<topic>-value` (for keys `-key`) by "topic", `<name>` by "record", `<topic>-<name>` by
    "topic-record"; a context alone (`":.staging:"`) is put in front of that. The schema is registered
    there with the first value. With `register=False` it must be there already; with `version` the
    subject's version of that number, or its "latest" at the first value, is used in its place, and with
    `id` the schema of that id.

    A value must have every field without a default, and no unknown field. A value that would lose something
    is refused (a float or bool for a long, an int that does not fit). May be called from any
    thread.
    """

    writes_schema_id: Final = True

    @overload
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: type[T],
        *,
        subject: str | None = None,
        strategy: Strategy = "topic",
        register: bool = True,
        version: int | Literal["latest"] | None = None,
        id: int | None = None,
        references: Sequence[Reference] = (),
    ) -> None: ...

    @overload
    def __init__(
        self: "AvroSerializer[Any]",
        registry: SchemaRegistry,
        schema: Any = None,
        *,
        subject: str | None = None,
        strategy: Strategy = "topic",
        register: bool = True,
        version: int | Literal["latest"] | None = None,
        id: int | None = None,
        references: Sequence[Reference] = (),
    ) -> None: ...

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Any = None,
        *,
        subject: str | None = None,
        strategy: Strategy = "topic",
        register: bool = True,
        version: int | Literal["latest"] | None = None,
        id: int | None = None,
        references: Sequence[Reference] = (),
    ) -> None:
        """Raises ConfigError; InvalidSchema for a class that no schema can be derived from."""
        if strategy not in ("topic", "record", "topic-record"):
            raise ConfigError(
                f"strategy={strategy!r} is not known: use 'topic', 'record' or 'topic-record'"
            )
        if id is not None and version is not None:
            raise ConfigError("id and version both say which schema is meant: give one of them")
        self.registry = registry
        self._is_derived = schema is None and id is None and version is None
        self._schema: Schema | None = schema
        if schema is not None and not isinstance(schema, str | Mapping | Sequence):
            self._schema = avro_schema(schema)
        self.subject = subject
        self._strategy = strategy
        self._registers = register
        self._version: int | Literal["latest"] | None = version
        self._id = id
        self._references = references
        self._field: Field = VALUE
        self._may_wait: Callable[[], bool] = lambda: True
        self._prepared: dict[str | tuple[str, type], _Prepared] = {}

    def bind(self, field: Field, may_wait: Callable[[], bool]) -> Self:
        """One for keys or for values of a producer.

        While `may_wait()` is False, a call that needs the registry raises WouldWait.
        """
        clone = copy(self)
        clone._field, clone._may_wait, clone._prepared = field, may_wait, {}
        return clone

    def serialize(self, topic: str, value: T, /) -> bytes:
        """Raises SerializationError for a value that does not fit, with the path to what is wrong.

        With the first value of a topic also what the registry raises: InvalidSchema,
        IncompatibleSchema, SubjectNotFound, ZooKeeperUnreachable.
        """
        key = (topic, type(value)) if self._is_derived else topic
        frame, encode, number, name = self._prepared.get(key) or self._prepare(
            key, topic, type(value)
        )
        try:
            return frame + encode(value)
        except (SchemaMismatch, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            wrapped = SerializationError(f"the value does not fit {name}: {reason}")
            wrapped.schema_id = number
            raise wrapped from None

    def prepare(self, topic: str, cls: type = object) -> int:
        """Have the schema of a topic ready before the first value → its id. Raises as `serialize`.

        `cls` is the class of the values, where it says the schema.
        """
        key = (topic, cls) if self._is_derived else topic
        return (self._prepared.get(key) or self._prepare(key, topic, cls))[2]

    def _prepare(self, key: str | tuple[str, type], topic: str, cls: type) -> _Prepared:
        if not self._may_wait():
            raise WouldWait(
                f"the schema of topic {topic} is not known yet, and nothing may wait for the registry "
                "here: send a first record elsewhere"
            )
        number, subject = self._find_id(
            topic, avro_schema(cls) if self._is_derived else self._schema
        )
        text = self.registry.resolved(number, subject=subject)
        name = f"schema {number}" if subject is None else f"schema {number} of {subject}"
        prepared = FRAME.pack(MAGIC, number), self._encoder(number, text), number, name
        while len(self._prepared) >= MAX_PREPARED:
            self._prepared.pop(next(iter(self._prepared)), None)
        self._prepared[key] = prepared
        return prepared

    def _find_id(self, topic: str, schema: Any) -> tuple[int, str | None]:
        """The id to write with, and the subject if there is one."""
        registry = self.registry
        if self._id is not None:
            return self._id, self.subject
        subject = self.subject or ""
        if not parse(subject).name:
            subject += self._subject_of(topic, schema)
        if self._version is not None:
            number = registry.version(subject, self._version).id
        elif self._registers:
            number = registry.register(subject, schema, references=self._references).id
        else:
            number = registry.lookup(subject, schema, references=self._references).id
        return number, subject

    def _subject_of(self, topic: str, schema: Any) -> str:
        if self._strategy == "topic":
            return f"{topic}-{self._field}"
        name = _full_name(json.loads(schema) if isinstance(schema, str) else schema)
        return name if self._strategy == "record" else f"{topic}-{name}"

    def _encoder(self, number: int, text: str) -> Encode:
        try:
            return encoder(text)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidSchema(f"nothing can be written by schema {number}: {error!r}") from error


def _full_name(schema: Any) -> str:
    name = schema.get("name") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(name, str):
        raise ConfigError(
            "strategies 'record' and 'topic-record' name the subject after the schema's record: give a "
            "schema that is one, or subject=…"
        )
    space = schema.get("namespace")
    return name if "." in name or not space else f"{space}.{name}"
