"""Connect strings as people write them."""

import pytest

from folkmoot.coordination.zookeeper.connect_string import parse
from folkmoot.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("localhost:2181", "localhost:2181", ""),
        ("zk", "zk", ""),
        ("zk/", "zk", ""),
        (" a:1,b:2 , c:3/apps/of-it ", "a:1,b:2,c:3", "/apps/of-it"),
        ("10.0.0.1:2181/a/", "10.0.0.1:2181", "/a"),
        ("[::1]:2181/a", "[::1]:2181", "/a"),
    ],
)
def test_servers_and_chroot_are_told_apart(text: str, servers: str, chroot: str) -> None:
    found = parse(text)
    assert (found.servers, found.chroot) == (servers, chroot)


def test_each_server_has_a_host_and_a_port() -> None:
    assert parse("a:1,b,[::1]:3/x").addresses == [("a", 1), ("b", 2181), ("::1", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "/apps", ":2181", "a:", "a:b", "a:0", "a:65536", "a:1,", "a:1,,b:2", "a:1 b:2",
        "zk://a:1", "::1:2181", "a:1//b", "a:1/b//c", "a:1/../b", "a:1/b c",
    ],
)  # fmt: skip
def test_what_is_no_connect_string_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT") as raised:
        parse(text)
    assert repr(text) in str(raised.value)
    assert "\n" not in str(raised.value)
