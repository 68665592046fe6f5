"""Records as `folkmoot consume` shows them: as a line of text, as JSON, raw, or in a format of kcat's."""

import re
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from folkmoot.console.records.formats.record_json import format_record
from folkmoot.console.records.formats.values import Decoder, as_json, readable
from folkmoot.protocol.errors import ConfigError

if TYPE_CHECKING:
    from folkmoot.protocol.records import Record

Show = Callable[["Record"], None]
_Part = Callable[["Record"], bytes]

FIELDS: Final[dict[str, _Part]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "K": lambda record: b"%d" % _length(record.key),
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: struct.pack(">i", _length(record.value)),
    "T": lambda record: b"%d" % record.timestamp,
    "h": lambda record: b",".join(
        name.encode() + b"=" + (b"NULL" if data is None else data) for name, data in record.headers
    ),
    "%": lambda record: b"%",
}
"""Letters after % in a format, besides k and s, key and value, which may have a schema."""

FORMAT_HELP: Final = (
    "as kcat has it: %t topic, %p partition, %o offset, %k key, %K its length, %s value, %S its "
    "length (of none -1), %R the same in four bytes, %T timestamp in ms, %h headers; \\n, \\t, \\xHH"
)
_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def writer(output: str, decode: Decoder, form: str = "") -> Show:
    """Return a printer of records as `text`, `json` or `raw`, or else in a format of kcat's. Raises
    ConfigError."""
    if output == "raw":
        return lambda record: _write((record.value or b"") + b"\n")
    if output == "json":
        return lambda record: print(format_record(record, decode))
    if output == "text":
        return lambda record: print(_line(record, decode))
    parts = _format(form, decode)
    return lambda record: _write(b"".join([part(record) for part in parts]))


def _format(form: str, decode: Decoder) -> list[_Part]:
    """Return the functions for the parts of a line."""

    def value(record: "Record") -> bytes:
        decoded = decode.value(record.value, record.headers)
        return (record.value or b"") if decoded is None else as_json(decoded[0]).encode()

    def key(record: "Record") -> bytes:
        decoded = decode.key(record.key, record.headers)
        return (record.key or b"") if decoded is None else as_json(decoded[0]).encode()

    fields = {**FIELDS, "k": key, "s": value}
    parts: list[_Part] = []
    for token in _TOKEN.finditer(form):
        name, escape = token.groups()
        if name is not None:
            if name not in fields:
                known = " ".join(f"%{each}" for each in fields)
                raise ConfigError(f"--format {form!r}: %{name} is not known, only {known}")
            parts.append(fields[name])
        else:
            parts.append(_constant(_text(form, token[0], escape)))
    return parts


def _text(form: str, text: str, escape: str | None) -> bytes:
    if escape is None:
        return text.encode(errors="surrogateescape")
    if escape[:1] == "x" and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise ConfigError(
            f"--format {form!r}: \\{escape} is not known, only \\n \\r \\t \\xHH \\\\"
        )
    return _ESCAPES[escape]


def _constant(text: bytes) -> _Part:
    return lambda record: text


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _line(record: "Record", decode: Decoder) -> str:
    """Return one line without control characters, so no record moves the cursor."""
    decoded = decode.value(record.value, record.headers)
    if decoded is not None:
        value = as_json(decoded[0]) if not isinstance(decoded[0], str) else decoded[0]
    else:
        value = "null" if record.value is None else readable(record.value)
    key = ""
    if record.key is not None:
        decoded_key = decode.key(record.key, record.headers)
        key = f"{readable(record.key) if decoded_key is None else as_json(decoded_key[0])}: "
    line = f"{record.partition}@{record.offset} {key}{value}"
    if line.isprintable():
        return line
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in line
    )
