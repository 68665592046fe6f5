"""How applications' keys and values become bytes, and bytes become them again: one interface for
producers and consumers."""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from folkmoot.protocol.errors import ConfigError, FolkmootError, SerializationError

KEY: Final = "key"
VALUE: Final = "value"


T = TypeVar("T")
Given = TypeVar("Given", contravariant=True)
Made = TypeVar("Made", covariant=True)


class TopicSerializer(Protocol[Given]):
    """Makes bytes of what is sent to a topic. May be called from any thread that sends.

    One whose values all begin with byte 0 and their schema's id (`wire`) says so by an attribute
    `writes_schema_id` that is True: then batches say which schema their values share.
    """

    def serialize(self, topic: str, value: Given, /) -> bytes: ...


class TopicDeserializer(Protocol[Made]):
    """Makes keys or values of the bytes that were read from a topic."""

    def deserialize(self, topic: str, data: bytes, /) -> Made: ...


Serializer = Callable[[T], bytes] | TopicSerializer[T]
Deserializer = Callable[[bytes], T] | TopicDeserializer[T]
Convert = Callable[[str, Any], Any]


def serializer(field: str, given: Serializer[Any] | None) -> Convert | None:
    """A function of topic and value, for the `field` "key" or "value"; None if there is none.

    None stays None: it is a tombstone, or no key. What `given` raises becomes SerializationError, with
    topic and field, but for errors of the project that have nothing to do with the value (a registry
    that cannot be reached). Raises ConfigError for what is neither callable nor has `serialize`.
    """
    return _converter(f"{field}_serializer", field, given, "serialize")


def writes_schema_id(given: Serializer[Any] | None) -> bool:
    """Whether a serialiser says that all it makes begins with a schema's id."""
    return getattr(given, "writes_schema_id", False) is True


def deserializer(field: str, given: Deserializer[Any] | None) -> Convert | None:
    """As `serializer`, of topic and bytes."""
    return _converter(f"{field}_deserializer", field, given, "deserialize")


def _converter(option: str, field: str, given: Any, word: str) -> Convert | None:
    if given is None:
        return None
    of_topic = getattr(given, word, None)
    if of_topic is None and not callable(given):
        raise ConfigError(
            f"{option}={given!r} is not allowed: use a callable of one argument, or an object with "
            f"{word}(topic, {'value' if word == 'serialize' else 'data'})"
        )

    def convert(topic: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return given(value) if of_topic is None else of_topic(topic, value)
        except Exception as error:
            if isinstance(error, FolkmootError) and not isinstance(error, SerializationError):
                raise
            said = str(error) if isinstance(error, SerializationError) else repr(error)
            raise SerializationError(
                f"the {field} of a record of topic {topic} cannot be {word}d: {said}"
            ) from error

    return convert
