"""How applications' keys and values become bytes, and bytes become them again: one interface for
producers and consumers."""

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeVar

from folkmoot.protocol.errors import (
    ConcurrentUse,
    ConfigError,
    FolkmootError,
    SchemaNotFound,
    SerializationError,
)

Field = Literal["key", "value"]
KEY: Final = "key"
VALUE: Final = "value"


T = TypeVar("T")
Given = TypeVar("Given", contravariant=True)
Made = TypeVar("Made", covariant=True)


class TopicSerializer(Protocol[Given]):
    """Makes bytes of what is sent to a topic. May be called from any thread that sends.

    One whose values all begin with byte 0 and their schema's id (`wire`) says so by an attribute
    `writes_schema_id` that is True: then batches say which schema their values share.

    One that may wait for a registry has a method `bound(field, may_wait)`. It returns the serialiser for
    the `field` "key" or "value". While `may_wait()` is False, that one raises WouldWait.
    """

    def serialize(self, topic: str, value: Given, /) -> bytes: ...


class TopicDeserializer(Protocol[Made]):
    """Makes keys or values of the bytes that were read from a topic.

    One that takes values with a schema's id or GUID in front (`wire`) has an attribute `reads_schema_id`
    that is True. Then the id or GUID in a record's header is put in front.
    """

    def deserialize(self, topic: str, data: bytes, /) -> Made: ...


class WouldWait(ConcurrentUse):
    """A serialiser must ask a registry first, where waiting is not allowed: on an event loop, in a
    callback."""


Serializer = Callable[[T], bytes] | TopicSerializer[T]
Deserializer = Callable[[bytes], T] | TopicDeserializer[T]
Convert = Callable[[str, Any], Any]


def serializer(
    field: Field, given: Serializer[Any] | None, may_wait: Callable[[], bool] = lambda: True
) -> Convert | None:
    """A function of topic and value, for the `field` "key" or "value"; None if there is none.

    None stays None: it is a tombstone, or no key. Errors of `given` become SerializationError, with topic
    and field. Errors of the project that are not about the value (a registry that is away) stay.
    `may_wait`: see TopicSerializer. Raises ConfigError for what is neither
    callable nor has `serialize`.
    """
    bound = getattr(given, "bound", None)
    if bound is not None:
        given = bound(field, may_wait)
    return _converter(f"{field}_serializer", field, given, "serialize")


def writes_schema_id(given: object) -> bool:
    """Return whether a serialiser says that all it makes begins with a schema's id."""
    return getattr(given, "writes_schema_id", False) is True


def reads_schema_id(given: object) -> bool:
    """Return whether a deserialiser says that it takes a schema's id or GUID in front."""
    return getattr(given, "reads_schema_id", False) is True


def deserializer(field: Field, given: Deserializer[Any] | None) -> Convert | None:
    """As `serializer`, of topic and bytes."""
    return _converter(f"{field}_deserializer", field, given, "deserialize")


def _converter(option: str, field: Field, given: Any, word: str) -> Convert | None:
    if given is None:
        return None
    of_topic = getattr(given, word, None)
    if of_topic is None and not callable(given):
        raise ConfigError(
            f"{option}={given!r} is not allowed: use a callable of one argument, or an object with "
            f"{word}(topic, {'value' if word == 'serialize' else 'data'})"
        )

    about_it = (
        (SerializationError,) if word == "serialize" else (SerializationError, SchemaNotFound)
    )

    def convert(topic: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return given(value) if of_topic is None else of_topic(topic, value)
        except Exception as error:
            is_about_it = isinstance(error, about_it)
            if isinstance(error, FolkmootError) and not is_about_it:
                raise
            said = str(error) if is_about_it else repr(error)
            failed = SerializationError(
                f"the {field} of a record of topic {topic} cannot be {word}d: {said}"
            )
            failed.schema_id = getattr(error, "schema_id", None)
            raise failed from error

    return convert
