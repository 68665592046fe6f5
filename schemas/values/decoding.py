"""Avro bodies to Python values, as a reader's schema says, by functions that are made once per schema.

Two schemas are resolved as Avro's specification says and Java does, which fastavro does not always: of a
union the branch that is exactly the writer's comes before one that it could be promoted to, a default of
bytes is bytes, and bytes that no such value can have are an error, never a value.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.avro.parsed import Parsed
from folkmoot.schemas.values.encoding import MAX_EMPTY_ITEMS
from folkmoot.schemas.values.program import Node, Op
from folkmoot.schemas.values.resolution import resolve

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
"""Errors for bytes that are no value of the schema."""

_FLOAT: Final = struct.Struct("<f")


class Made(NamedTuple):
    """A factory for values of a named type, in place of a dict or text."""

    make: Callable[..., Any]
    """For a record it gets the attributes by name; for an enum, the symbol."""
    attributes: Mapping[str, str]
    """Attributes of a record's fields."""


def decoder(
    writer: str, reader: str | None = None, classes: Mapping[str, Made] | None = None
) -> Decode:
    """Reads what the schema `writer` wrote as `reader` says, without one as it was written; resolved texts.

    `classes` says what becomes of the reader's named types; a record of a class may have been written under
    any name, since it is the application that wants it. That the two schemas do not fit is raised
    where the bytes have such a value, as the specification wants it.
    """
    written = Parsed(writer)
    wanted = written if reader is None else Parsed(reader)
    nodes: list[Node] = []
    root = resolve(nodes, written, wanted, of_any_name=classes is not None)
    return _Decoders(nodes, classes or {}).of(root)


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
    """Return start and end of bytes whose length is at this position."""
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
"""A field as it was written, or a default: the name that it gets (None: it is skipped), and its function."""


def _record(
    fields: list[_Field], order: list[str] | None, make: Callable[[dict[Any, Any]], Any] | None
) -> Decode:
    """`order`: the reader's; None where it is the same."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        made: dict[str | None, Any] = {}
        name: str | None = None
        try:
            for name, read in fields:
                made[name], place = read(data, place)
        except BROKEN as error:
            raise in_words(error).within(f".{name or '(a field that is skipped)'}") from None
        if order is not None:
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


# -- programs -----------------------------------------------------------------------------------------


class _Decoders:
    """Makes the functions of one program."""

    def __init__(self, nodes: list[Node], classes: Mapping[str, Made]) -> None:
        self._nodes = nodes
        self._classes = classes
        self._records: dict[int, Decode] = {}

    def of(self, number: int) -> Decode:
        node = self._nodes[number]
        match node.op:
            case Op.NULL:
                return _null
            case Op.RECORD:
                return self._of_record(number)
            case Op.UNION:
                return self._of_union(node)
            case Op.ARRAY if node.writer["type"] == "map":
                key, value = self._nodes[node.children[0]].children
                return _map(self.of(key), self.of(value))
            case Op.ARRAY:
                return _array(self.of(node.children[0]))
            case Op.ENUM:
                return self._of_enum(node)
            case Op.CONSTANT:
                return _constant(self.of(node.children[0]), node.data)
            case Op.FAIL:
                return _refused(node.data.decode())
        return _of_plain(node)

    def _of_union(self, node: Node) -> Decode:
        branches = [self.of(child) for child in node.children]
        if len(branches) == 2 and _null in branches:
            null = branches.index(_null)
            return _nullable(null, branches[1 - null])
        return _union(branches)

    def _of_enum(self, node: Node) -> Decode:
        writer, reader = node.writer, node.reader or node.writer
        known = self._classes.get(reader["name"])
        made = reader["symbols"] if known is None else [*map(known.make, reader["symbols"])]
        values = [None if each < 0 else made[each] for each in node.children]

        def decode(data: bytes, place: int) -> tuple[Any, int]:
            number, place = _int(data, place)
            if not 0 <= number < len(values):
                raise SchemaMismatch(f"the enum {writer['name']} has no symbol {number}")
            if values[number] is None:
                symbol = writer["symbols"][number]
                raise SchemaMismatch(f"the reader's enum has no symbol {symbol}")
            return values[number], place

        return decode

    def _of_record(self, number: int) -> Decode:
        if number not in self._records:
            node = self._nodes[number]
            known = self._classes.get(node.reader["name"]) if node.reader else None
            wanted = node.reader["fields"] if node.reader else []
            attributes = {} if known is None else known.attributes
            names = [attributes.get(each["name"], each["name"]) for each in wanted]
            read = [None if place < 0 else names[place] for place in node.places]
            fields: list[_Field] = []
            order = None if read == names else names
            make = None if known is None else _maker(known.make)
            self._records[number] = _record(fields, order, make)
            # Now that it is known: a record may be within itself.
            fields += zip(read, map(self.of, node.children), strict=True)
        return self._records[number]


def _constant(read: Decode, body: bytes) -> Decode:
    """A default, made anew for each value."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        return read(body, 0)[0], place

    return decode


def _of_plain(node: Node) -> Decode:
    writer, reader = node.writer, node.reader
    kind = writer["type"]
    plain = _fixed(node.size) if node.op is Op.FIXED else _PLAIN[kind]
    if reader is None:  # skipped: a text is not decoded, a date is a number
        return _bytes if node.op is Op.BYTES else plain
    wanted, times = reader["type"], 1
    if node.op is Op.BYTES:
        plain = _PLAIN[wanted]
    elif node.op in (Op.INT, Op.LONG):
        times = node.size
        if wanted in ("float", "double"):
            plain = _converted(plain, float if wanted == "double" else as_float)
    theirs, ours = logical(writer), logical(reader)
    # The same point in time, and the same number, whatever unit or scale each of the two has.
    if ours is not None and theirs is not None and _family(writer) == _family(reader):
        return _converted(plain, theirs.read)
    if times > 1:  # to what Python has no type for
        plain = _converted(plain, lambda number: _finer(number, times))
    return plain if ours is None else _converted(plain, ours.read)


def _finer(number: int, times: int) -> int:
    made = number * times
    if not -(1 << 63) <= made < 1 << 63:
        raise SchemaMismatch(f"{number} is out of range in the reader's unit")
    return made


def as_float(number: int) -> float:
    """As 32 bits hold it, rounded once."""
    if number >> 53 not in (0, -1):
        # Python goes by way of a double. Dropped values leave a trace.
        number = (number >> 11 | bool(number & 0x7FF)) << 11
    nearest: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    return nearest


def _family(schema: Json) -> str:
    kind = str(schema["logicalType"])
    return kind.removesuffix("-millis").removesuffix("-micros")


def _maker(make: Callable[..., Any]) -> Callable[[dict[Any, Any]], Any]:
    def made_of(fields: dict[Any, Any]) -> Any:
        try:
            return make(**fields)
        except Exception as error:  # the class is the application's
            raise SchemaMismatch(f"{make.__name__} refuses it: {error!r}") from error

    return made_of
