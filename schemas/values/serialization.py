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
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class TopicSerializer(Protocol[T_contra]):
    """Makes bytes of what is sent to a topic. May be called from any thread that sends.

    One whose values all begin with byte 0 and their schema's id (`wire`) says so by an attribute
    `writes_schema_id` that is True: then batches say which schema their values share.

    One that may wait for a registry has a method `bind(field, may_wait)`. It returns the serialiser for
    the `field` "key" or "value". While `may_wait()` is False, that one raises WouldWait.
    """

    def serialize(self, topic: str, value: T_contra, /) -> bytes: ...


class TopicDeserializer(Protocol[T_co]):
    """Makes keys or values of the bytes that were read from a topic.

    One that takes values with a schema's id or GUID in front (`wire`) has an attribute `reads_schema_id`
    that is True. Then the id or GUID in a record's header is put in front.
    """

    def deserialize(self, topic: str, data: bytes, /) -> T_co: ...


class WouldWait(ConcurrentUse):
    """A serialiser must ask a registry first, where waiting is not allowed: on an event loop, in a
    callback."""


Serializer = Callable[[T], bytes] | TopicSerializer[T]
Deserializer = Callable[[bytes], T] | TopicDeserializer[T]
Convert = Callable[[str, Any], Any]


def serializer(
    field: Field,
    user_serializer: Serializer[Any] | None,
    may_wait: Callable[[], bool] = lambda: True,
) -> Convert | None:
    """A function of topic and value, for the `field` "key" or "value"; None if there is none.

    None stays None: it is a tombstone, or no key. Errors of the serialiser become SerializationError, with
    topic and field. Errors of the project that are not about the value (a registry that is away) stay.
    `may_wait`: see TopicSerializer. Raises ConfigError for what is neither
    callable nor has `serialize`.
    """
    bind = getattr(user_serializer, "bind", None)
    if bind is not None:
        user_serializer = bind(field, may_wait)
    return _converter(f"{field}_serializer", field, user_serializer, "serialize")


def writes_schema_id(user_serializer: object) -> bool:
    """Return whether a serialiser says that all it makes begins with a schema's id."""
    return getattr(user_serializer, "writes_schema_id", False) is True


def reads_schema_id(user_deserializer: object) -> bool:
    """Return whether a deserialiser says that it takes a schema's id or GUID in front."""
    return getattr(user_deserializer, "reads_schema_id", False) is True


def deserializer(field: Field, user_deserializer: Deserializer[Any] | None) -> Convert | None:
    """As `serializer`, of topic and bytes."""
    return _converter(f"{field}_deserializer", field, user_deserializer, "deserialize")


def _converter(option: str, field: Field, converter: Any, method: str) -> Convert | None:
    if converter is None:
        return None
    convert_for_topic = getattr(converter, method, None)
    if convert_for_topic is None and not callable(converter):
        raise ConfigError(
            f"{option}={converter!r} is not allowed: use a callable of one argument, or an object with "
            f"{method}(topic, {'value' if method == 'serialize' else 'data'})"
        )

    value_errors = (
        (SerializationError,) if method == "serialize" else (SerializationError, SchemaNotFound)
    )

    def convert(topic: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return (
                converter(value) if convert_for_topic is None else convert_for_topic(topic, value)
            )
        except Exception as error:
            is_value_error = isinstance(error, value_errors)
            if isinstance(error, FolkmootError) and not is_value_error:
                raise
            reason = str(error) if is_value_error else repr(error)
            wrapped = SerializationError(
                f"the {field} of a record of topic {topic} cannot be {method}d: {reason}"
            )
            wrapped.schema_id = getattr(error, "schema_id", None)
            raise wrapped from error

    return convert
