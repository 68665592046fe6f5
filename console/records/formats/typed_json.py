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

    def __call__(self, told: Json) -> Any:
        try:
            return self._of(self._schema.root, told)
        except RecursionError:
            return told

    def _of(self, schema: Json, told: Json) -> Any:
        plain = self._schema.of(schema)
        if isinstance(plain, list):
            others = [each for each in plain if self._schema.of(each)["type"] != "null"]
            return self._of(others[0], told) if told is not None and len(others) == 1 else told
        match plain["type"], told:
            case "record" | "error", dict():
                types = {field["name"]: field["type"] for field in plain["fields"]}
                return {
                    name: self._of(types[name], each) if name in types else each
                    for name, each in told.items()
                }
            case "array", list():
                return [self._of(plain["items"], each) for each in told]
            case "map", dict():
                return {key: self._of(plain["values"], each) for key, each in told.items()}
        return _leaf(plain, told)


def _leaf(schema: Json, told: Json) -> Any:
    known = logical(schema)
    try:
        match schema["type"], told:
            case _, str() if known is not None:
                return _READ[known.python[0]](told)
            case "float" | "double", str() if told in _NO_NUMBERS:
                return float(told)
            case "bytes" | "fixed", str():
                return told.encode()
            case "bytes" | "fixed", dict() if told.keys() == {BASE64}:
                return b64decode(told[BASE64], validate=True)
    except (ValueError, ArithmeticError, TypeError):
        pass
    return told
