"""Records in formats of kcat's."""

import io
import sys
from types import SimpleNamespace

import pytest

from folkmoot.console.records.formats.record_text import writer
from folkmoot.console.records.formats.values import Decoder
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import Record

FULL = Record("t", 1, 7, 1_500, b"key", b"\xff\n", (("a", b"1"), ("b", None)))
TOMBSTONE = Record("t", 0, 8, 0, None, None)


@pytest.mark.parametrize(
    ("form", "full", "tombstone"),
    [
        ("%t %p@%o", b"t 1@7", b"t 0@8"),
        ("%k/%K %s/%S", b"key/3 \xff\n/2", b"/-1 /-1"),
        ("%R%T", b"\x00\x00\x00\x021500", b"\xff\xff\xff\xff0"),
        ("[%h]", b"[a=1,b=NULL]", b"[]"),
        (r"%%\n\t\r\\\x00ü", "%\n\t\r\\\0ü".encode(), "%\n\t\r\\\0ü".encode()),
        ("", b"", b""),
    ],
)
def test_a_format_shows_what_it_names(
    form: str, full: bytes, tombstone: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for record, expected in ((FULL, full), (TOMBSTONE, tombstone)):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        writer("", Decoder(None), form)(record)
        assert out.getvalue() == expected


def test_bytes_that_may_be_anything_are_not_asked_about() -> None:
    decode = Decoder("nowhere:1")
    for value in (b"\1" + bytes(30), b"\0\0", b"", None):
        assert decode.value(value, (("a", b"\0"), ("__key_schema_id", b"\0"))) is None
    assert decode.value(b"x", (("__value_schema_id", b"\1 no guid"),)) is None
    assert decode.key(bytes(30)) is None


@pytest.mark.parametrize("form", ["%y", "%", r"\q", "a\\", r"\x1", "%t%"])
def test_what_a_format_does_not_have_is_named(form: str) -> None:
    with pytest.raises(ConfigError, match="is not known, only"):
        writer("", Decoder(None), form)
