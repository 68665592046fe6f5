"""Avro bodies to Python values, as a reader's schema says, by functions that are made once per schema.

Two schemas are resolved as Avro's specification says and Java does, which fastavro does not always: of a
union the branch that is exactly the writer's comes before one that it could be promoted to, a default of
bytes is bytes, and bytes that no such value can have are an error, never a value.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from folkmoot.schemas.avro.identity import RECORDS
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.matching import chosen, factor, fits, promotes, sources
from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.avro.parsed import definition, named_types
from folkmoot.schemas.values.encoding import MAX_EMPTY_ITEMS, default_body

Json = Any
Decode = Callable[[bytes, int], tuple[Any, int]]
"""The value that begins at a place of some bytes, and the place behind it. Raises BROKEN."""

BROKEN: Final = (
    SchemaMismatch,
    ValueError,
    IndexError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
"""What is raised for bytes that are no value of the schema."""

_FLOAT: Final = struct.Struct("<f")


class Made(NamedTuple):
    """What is made of values of a named type, in place of a dict or text."""

    make: Callable[..., Any]
    """Of a record, called with its attributes by name; of an enum, with its symbol."""
    attributes: Mapping[str, str]
    """Of the fields of a record."""


def decoder(
    writer: str, reader: str | None = None, classes: Mapping[str, Made] | None = None
) -> Decode:
    """Reads what the schema `writer` wrote as `reader` says, without one as it was written; resolved texts.

    `classes` says what becomes of the reader's named types; a record of a class may have been written under
    any name, since it is the application that wants it. That the two schemas do not fit is raised
    where the bytes have such a value, as the specification wants it.
    """
    written = json.loads(writer)
    wanted = written if reader is None else json.loads(reader)
    decoders = _Decoders(named_types(written), named_types(wanted), classes or {})
    if classes is not None and _is_record(written) and _is_record(wanted):
        return decoders.of_record(written, wanted)
    return decoders.of(written, wanted)


# -- plain types --------------------------------------------------------------------------------------


def _null(data: bytes, place: int) -> tuple[None, int]:
    return None, place


def _boolean(data: bytes, place: int) -> tuple[bool, int]:
    byte = data[place]
    if byte > 1:
        raise SchemaMismatch(f"byte {byte} is no boolean")
    return byte == 1, place + 1


def _int(data: bytes, place: int) -> tuple[int, int]:
    byte = data[place]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), place + 1
    more = data[place + 1]
    if more < 0x80:
        byte += (more << 7) - 0x80
        return (byte >> 1) ^ -(byte & 1), place + 2
    number, place = _long(data, place)
    if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise SchemaMismatch(f"{number} does not fit into an int")
    return number, place


def _long(data: bytes, place: int) -> tuple[int, int]:
    byte = data[place]
    place += 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise SchemaMismatch("a number has more than ten bytes")
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    if number >> 64:
        raise SchemaMismatch("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), place


def _floating(form: str) -> Decode:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)

    def decode(data: bytes, place: int) -> tuple[float, int]:
        return unpack(data, place)[0], place + size

    return decode


def _end(data: bytes, place: int) -> tuple[int, int]:
    """Where bytes begin whose length stands here, and where they end."""
    byte = data[place]
    if byte < 0x80 and not byte & 1:
        size, place = byte >> 1, place + 1
    else:
        size, place = _long(data, place)
    end = place + size
    if size < 0 or end > len(data):
        raise SchemaMismatch(f"{len(data) - place} bytes are left, and {size} wanted")
    return place, end


def _string(data: bytes, place: int) -> tuple[str, int]:
    place, end = _end(data, place)
    return data[place:end].decode(), end


def _bytes(data: bytes, place: int) -> tuple[bytes, int]:
    place, end = _end(data, place)
    return data[place:end], end


_PLAIN: Final[dict[str, Decode]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Decode:
    def decode(data: bytes, place: int) -> tuple[bytes, int]:
        end = place + size
        if end > len(data):
            raise SchemaMismatch(f"{len(data) - place} bytes are left, and {size} wanted")
        return data[place:end], end

    return decode


def _array(item: Decode) -> Decode:
    def decode(data: bytes, place: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        try:
            count, place = _block(data, place)
            while count:
                begin = place
                value, place = item(data, place)
                made.append(value)
                if place == begin and len(made) + count - 1 > MAX_EMPTY_ITEMS:
                    raise SchemaMismatch(f"more than {MAX_EMPTY_ITEMS} items take no bytes")
                for _ in range(count - 1):
                    value, place = item(data, place)
                    made.append(value)
                count, place = _block(data, place)
        except BROKEN as error:
            raise in_words(error).within(f"[{len(made)}]") from None
        return made, place

    return decode


def _map(key_of: Decode, item: Decode) -> Decode:
    def decode(data: bytes, place: int) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        key = ""
        try:
            count, place = _block(data, place)
            while count:
                for _ in range(count):
                    key, place = key_of(data, place)
                    made[key], place = item(data, place)
                count, place = _block(data, place)
        except BROKEN as error:
            raise in_words(error).within(f"[{key!r:.80}]") from None
        return made, place

    return decode


def _block(data: bytes, place: int) -> tuple[int, int]:
    """How many items follow, and where."""
    count, place = _long(data, place)
    if count < 0:
        _, place = _long(data, place)
        count = -count
    return count, place


def _converted(plain: Decode, convert: Callable[[Any], Any]) -> Decode:
    def decode(data: bytes, place: int) -> tuple[Any, int]:
        value, place = plain(data, place)
        return convert(value), place

    return decode


def _refused(why: str) -> Decode:
    def decode(data: bytes, place: int) -> tuple[Any, int]:
        raise SchemaMismatch(why)

    return decode


def in_words(error: BaseException) -> SchemaMismatch:
    """One of BROKEN in words of ours."""
    match error:
        case SchemaMismatch():
            return error
        case IndexError() | struct.error():
            return SchemaMismatch("the bytes end here")
        case UnicodeDecodeError():
            return SchemaMismatch("a text is not UTF-8")
        case RecursionError():
            return SchemaMismatch("it is nested too deeply")
    return SchemaMismatch(str(error)[:200])


# -- records, enums, unions ---------------------------------------------------------------------------


_Field = tuple[str | None, Decode]
"""A field as it was written: the name that it gets (None: it is skipped), and how it is read."""


def _record(
    fields: list[_Field],
    defaults: list[tuple[str, Decode, bytes]],
    order: list[str] | None,
    make: Callable[[dict[Any, Any]], Any] | None,
) -> Decode:
    """`defaults`: of fields that were not written. `order`: the reader's; None where it is the same."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        made: dict[str | None, Any] = {}
        name: str | None = None
        try:
            for name, read in fields:
                made[name], place = read(data, place)
        except BROKEN as error:
            raise in_words(error).within(f".{name or '(a field that is skipped)'}") from None
        if order is not None:
            for name, read, body in defaults:
                made[name] = read(body, 0)[0]
            made = {name: made[name] for name in order}
        return made if make is None else make(made), place

    return decode


def _nullable(null: int, decode: Decode) -> Decode:
    """A union of null and one other, of which null may be made."""
    nothing, something = null * 2, 2 - null * 2

    def read(data: bytes, place: int) -> tuple[Any, int]:
        byte = data[place]
        if byte == something:
            return decode(data, place + 1)
        if byte == nothing:
            return None, place + 1
        number, place = _long(data, place)
        if number not in (0, 1):
            raise SchemaMismatch(f"the union has two branches, and none {number}")
        return (None, place) if number == null else decode(data, place)  # in more bytes than one

    return read


def _union(branches: list[Decode]) -> Decode:
    def decode(data: bytes, place: int) -> tuple[Any, int]:
        number, place = _long(data, place)
        if not 0 <= number < len(branches):
            raise SchemaMismatch(f"the union has {len(branches)} branches, and none {number}")
        return branches[number](data, place)

    return decode


# -- schemas ------------------------------------------------------------------------------------------


class _Decoders:
    """Makes the functions of one pair of schemas."""

    def __init__(
        self,
        written: dict[str, Json],
        wanted: dict[str, Json],
        classes: Mapping[str, Made],
        key: Decode = _string,
    ) -> None:
        """`key` reads those of maps."""
        self._key = key
        self._written = written
        self._wanted = wanted
        self._classes = classes
        self._made: dict[tuple[str, str], Decode | None] = {}
        self._skipping: _Decoders | None = None

    def of(self, written: Json, wanted: Json) -> Decode:
        writer, reader = definition(written, self._written), definition(wanted, self._wanted)
        if isinstance(writer, list):
            return self._of_writers_union(writer, reader)
        if isinstance(reader, list):
            branches = [definition(each, self._wanted) for each in reader]
            place = chosen(writer, branches)
            if place is None:
                return _refused(f"the reader's union has no place for {_name(writer)}")
            return self.of(writer, branches[place])
        if not fits(writer, reader) and not promotes(writer, reader):
            said = f"the reader wants {_name(reader)}, and {_name(writer)} was written"
            renamed = "name" in writer and writer["type"] == reader["type"]
            return _refused(f"{said}: give it that name as an alias" if renamed else said)
        match writer["type"]:
            case "record" | "error":
                return self.of_record(writer, reader)
            case "array":
                return _array(self.of(writer["items"], reader["items"]))
            case "map":
                return _map(self._key, self.of(writer["values"], reader["values"]))
            case "enum":
                return self._of_enum(writer, reader)
        return _of_plain(writer, reader)

    def _of_writers_union(self, writer: list[Json], reader: Json) -> Decode:
        branches = [self.of(branch, reader) for branch in writer]
        if len(writer) == 2 and _null in branches:
            null = branches.index(_null)
            return _nullable(null, branches[1 - null])
        return _union(branches)

    def _of_enum(self, writer: Json, reader: Json) -> Decode:
        known, default = set(reader["symbols"]), reader.get("default")
        made = self._classes.get(reader["name"])
        symbols = [each if each in known else default for each in writer["symbols"]]
        values = [each if made is None or each is None else made.make(each) for each in symbols]

        def decode(data: bytes, place: int) -> tuple[Any, int]:
            number, place = _int(data, place)
            if not 0 <= number < len(values):
                raise SchemaMismatch(f"the enum {writer['name']} has no symbol {number}")
            if values[number] is None:
                raise SchemaMismatch(f"the reader's enum has no symbol {writer['symbols'][number]}")
            return values[number], place

        return decode

    def of_record(self, writer: Json, reader: Json) -> Decode:
        pair = writer["name"], reader["name"]
        if pair in self._made:
            made = self._made[pair]
            if made is not None:
                return made
            later = self._made  # within itself: it is not made yet

            def decode(data: bytes, place: int) -> tuple[Any, int]:
                made = later[pair]
                assert made is not None
                return made(data, place)

            return decode
        self._made[pair] = None
        self._made[pair] = made = self._resolved(writer, reader)
        return made

    def _resolved(self, writer: Json, reader: Json) -> Decode:
        known: Made | None = self._classes.get(reader["name"])
        attributes: Mapping[str, str] = {} if known is None else known.attributes
        targets = sources(writer, reader)
        defaults: list[tuple[str, Decode, bytes]] = []
        for place, field in enumerate(reader["fields"]):
            if place in targets.values():
                continue
            if "default" not in field:
                return _refused(
                    f"field {field['name']} of {reader['name']} was not written, and has no default"
                )
            name = attributes.get(field["name"], field["name"])
            defaults.append((name, *self._default(field)))
        fields: list[_Field] = []
        for field in writer["fields"]:
            if field["name"] not in targets:
                fields.append((None, self._skipped(field["type"])))
            else:
                target = reader["fields"][targets[field["name"]]]
                name = attributes.get(target["name"], target["name"])
                fields.append((name, self.of(field["type"], target["type"])))
        order = [attributes.get(field["name"], field["name"]) for field in reader["fields"]]
        is_in_order = [name for name, _ in fields] == order
        make = None if known is None else _maker(known.make)
        return _record(fields, defaults, None if is_in_order else order, make)

    def _default(self, field: Json) -> tuple[Decode, bytes]:
        """How the default of a reader's field is read, anew for each value, and of what bytes."""
        same = _Decoders(self._wanted, self._wanted, self._classes)
        try:
            body = default_body(field["type"], field["default"], self._wanted)
        except ValueError as error:
            return _refused(f"the default of {field['name']} does not fit: {error}"), b""
        return same.of(field["type"], field["type"]), body

    def _skipped(self, schema: Json) -> Decode:
        """Reads over what nobody wants, whatever it says: a text is not decoded, a date is a number."""
        if self._skipping is None:
            plain = {name: _stripped(each) for name, each in self._written.items()}
            self._skipping = _Decoders(self._written, plain, {}, _bytes)
        return self._skipping.of(schema, _stripped(schema))


def _of_plain(writer: Any, reader: Any) -> Decode:
    kind, wanted = writer["type"], reader["type"]
    if kind == "fixed":
        plain = _fixed(writer["size"])
    elif wanted in ("float", "double") and kind in ("int", "long"):
        plain = _converted(_PLAIN[kind], float if wanted == "double" else as_float)
    else:
        plain = _PLAIN[wanted if kind in ("string", "bytes") else kind]
    theirs, ours = logical(writer), logical(reader)
    # The same point in time, and the same number, whatever unit or scale each of the two has.
    if ours is not None and theirs is not None and _family(writer) == _family(reader):
        return _converted(plain, theirs.read)
    times = factor(writer, reader)
    if times < 1:
        said = f"{writer['logicalType']} cannot be read as {reader['logicalType']}"
        return _refused(f"{said}, which is coarser")
    if times > 1:  # to what Python has no type for
        plain = _converted(plain, lambda number: _finer(number, int(times)))
    return plain if ours is None else _converted(plain, ours.read)


def _finer(number: int, times: int) -> int:
    made = number * times
    if not -(1 << 63) <= made < 1 << 63:
        raise SchemaMismatch(f"{number} is out of range in the reader's unit")
    return made


def as_float(number: int) -> float:
    """As 32 bits hold it, rounded once."""
    if number >> 53 not in (
        0,
        -1,
    ):  # Python goes by way of a double; what that drops leaves a trace
        number = (number >> 11 | bool(number & 0x7FF)) << 11
    nearest: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return nearest


def _family(schema: Json) -> str:
    kind = str(schema["logicalType"])
    return kind.removesuffix("-millis").removesuffix("-micros")


def _stripped(schema: Json) -> Json:
    """The same bytes, read as they are."""
    if isinstance(schema, list):
        return [_stripped(each) for each in schema]
    if isinstance(schema, dict):
        plain = {key: each for key, each in schema.items() if key != "logicalType"}
        for key in plain.keys() & {"type", "items", "values"}:
            plain[key] = _stripped(plain[key])
        if "fields" in plain:
            plain["fields"] = [
                field | {"type": _stripped(field["type"])} for field in plain["fields"]
            ]
        return plain
    return "bytes" if schema == "string" else schema


def _maker(make: Callable[..., Any]) -> Callable[[dict[Any, Any]], Any]:
    def made_of(fields: dict[Any, Any]) -> Any:
        try:
            return make(**fields)
        except Exception as error:  # the class is the application's
            raise SchemaMismatch(f"{make.__name__} refuses it: {error!r}") from error

    return made_of


def _name(schema: Json) -> str:
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else "a union"


def _is_record(schema: Json) -> bool:
    return isinstance(schema, dict) and schema["type"] in RECORDS
