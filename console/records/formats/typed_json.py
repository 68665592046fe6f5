"""JSON that `as_json` has made of a value, as its schema takes it: there times and bytes are no texts."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from folkmoot.console.records.formats.values import BASE64
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.parsed import ParsedSchema

Json = Any
_READ: Final[Mapping[type, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")


class TypedJson:
    """Values of one schema, a resolved text. A value that does not fit stays as it is, and so does a value
    of a union of several types, since the branch is unknown: serialisers report the error."""

    def __init__(self, text: str) -> None:
        self._schema = ParsedSchema(text)

    def __call__(self, value: Json) -> Any:
        try:
            return self._convert(self._schema.root, value)
        except RecursionError:
            return value

    def _convert(self, schema: Json, value: Json) -> Any:
        plain = self._schema.of(schema)
        if isinstance(plain, list):
            value_types = [each for each in plain if self._schema.of(each)["type"] != "null"]
            return (
                self._convert(value_types[0], value)
                if value is not None and len(value_types) == 1
                else value
            )
        match plain["type"], value:
            case "record" | "error", dict():
                types = {field["name"]: field["type"] for field in plain["fields"]}
                return {
                    name: self._convert(types[name], each) if name in types else each
                    for name, each in value.items()
                }
            case "array", list():
                return [self._convert(plain["items"], each) for each in value]
            case "map", dict():
                return {key: self._convert(plain["values"], each) for key, each in value.items()}
        return _leaf(plain, value)


def _leaf(schema: Json, value: Json) -> Any:
    logical_type = logical(schema)
    try:
        match schema["type"], value:
            case _, str() if logical_type is not None:
                return _READ[logical_type.python[0]](value)
            case "float" | "double", str() if value in _NO_NUMBERS:
                return float(value)
            case "bytes" | "fixed", str():
                return value.encode()
            case "bytes" | "fixed", dict() if value.keys() == {BASE64}:
                return b64decode(value[BASE64], validate=True)
    except (ValueError, ArithmeticError, TypeError):
        pass
    return value
