"""Applications' keys and values to bytes and back: one interface for producers and consumers."""

import json
from typing import Any, Literal

import pytest

from folkmoot.protocol.errors import ConfigError, SerializationError, ZooKeeperUnreachable
from folkmoot.schemas.values.serialization import deserializer, serializer


class OfTopic:
    """Both ways, with the topic in front."""

    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}:{value}".encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode().removeprefix(f"{topic}:")


def test_a_callable_gets_the_value_and_an_object_the_topic_as_well() -> None:
    plain = serializer("value", lambda value: json.dumps(value).encode())
    of_topic, back = serializer("key", OfTopic()), deserializer("key", OfTopic())
    assert plain is not None
    assert of_topic is not None
    assert back is not None
    assert plain("t", [1]) == b"[1]"
    assert of_topic("t", "x") == b"t:x"
    assert back("t", b"t:x") == "x"


def test_none_is_no_key_or_a_tombstone_and_nobody_is_asked() -> None:
    def fail(value: Any) -> bytes:
        raise AssertionError

    for made in (serializer("key", fail), deserializer("value", fail)):
        assert made is not None
        assert made("t", None) is None
    assert serializer("key", None) is None


@pytest.mark.parametrize("field", ["key", "value"])
def test_what_it_raises_names_topic_and_field(field: Literal["key", "value"]) -> None:
    def fail(value: Any) -> Any:
        raise value

    made, back = serializer(field, fail), deserializer(field, fail)
    assert made is not None
    assert back is not None
    with pytest.raises(SerializationError, match=f"the {field} of .* topic t .*serialized: KeyErr"):
        made("t", KeyError("x"))
    with pytest.raises(SerializationError, match=f"the {field} of .*deserialized: no such field"):
        back("t", SerializationError("no such field"))
    with pytest.raises(ZooKeeperUnreachable):
        made("t", ZooKeeperUnreachable("the registry is away"))


def test_what_is_no_serialiser_is_refused_by_the_option_s_name() -> None:
    with pytest.raises(ConfigError, match=r"key_serializer='utf-8' .*serialize\(topic, value\)"):
        serializer("key", "utf-8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"value_deserializer=5 .*deserialize\(topic, data\)"):
        deserializer("value", 5)  # type: ignore[arg-type]
