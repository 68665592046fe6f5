"""Names become znode paths and directory names."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folkmoot.protocol.errors import InvalidName
from folkmoot.protocol.names import MAX_NAME_CHARACTERS, Name, check_name

LEGAL = ["a", "flights", "Flights_2013", "a.b-c_d", "...", ".hidden", "-", "0", "x" * 249]
ILLEGAL = [
    *("", ".", "..", "x" * 250, "a/b", "/a", "../a", "a b", " a", "a\n", "a\r\n", "a\x00"),
    *("é", "\u0661", "ａ", "a\u2028", "a:b", "a\\b", "a%b", "~a", "\ud800"),
]


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_pass(name: str) -> None:
    assert check_name("topic", name) == name
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ILLEGAL, ids=ascii)
def test_illegal_names_are_refused_here_and_on_the_wire(name: str) -> None:
    with pytest.raises(InvalidName, match="topic name"):
        check_name("topic", name)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


@pytest.mark.parametrize("name", [None, 5, b"flights", ["t"]])
def test_what_is_no_str_is_no_name(name: Any) -> None:
    with pytest.raises(InvalidName, match="topic name"):
        check_name("topic", name)


def test_the_error_is_one_line_whatever_the_name_holds() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("group", "two\nlines\x1b[31m")
    assert str(caught.value).isprintable()
    assert "group name" in str(caught.value)


@settings(deadline=None, print_blob=True)
@given(name=st.text(max_size=5) | st.text("abc./\\ \n-_", max_size=260))
def test_both_checks_agree_with_the_rule(name: str) -> None:
    legal = (
        1 <= len(name) <= MAX_NAME_CHARACTERS
        and name not in (".", "..")
        and all(re.match(r"[a-zA-Z0-9._-]", character) for character in name)
    )
    try:
        check_name("topic", name)
    except InvalidName:
        assert not legal
    else:
        assert legal
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        assert not legal
    else:
        assert legal
