"""How a client is told where its cluster is."""

import pytest

from folkmoot.protocol.addresses import bootstrap_addresses, check_cluster
from folkmoot.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1", ("a:1",)),
        (
            " broker-1.example.org:9190, 10.0.0.7:65535 ",
            ("broker-1.example.org:9190", "10.0.0.7:65535"),
        ),
        ("[::1]:9190,a:1,a:1", ("[::1]:9190", "a:1")),
        (["a:1", "b:2"], ("a:1", "b:2")),
    ],
)
def test_addresses_are_texts_or_lists_and_count_once(
    given: str | list[str], addresses: tuple[str, ...]
) -> None:
    assert bootstrap_addresses(given) == addresses


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:1,",
        "a b:1",
        "::1:9190",
        "tcp://a:1",
        "a:1/root",
        b"a:1",
        ["a:1", 7],
        "a:x",
        [""],
    ],
)
def test_what_is_no_address_is_named(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="is no address of a broker; use HOST:PORT"):
        bootstrap_addresses(given)


@pytest.mark.parametrize(
    ("zookeeper", "bootstrap", "what"),
    [("", (), "is missing"), ("", "", "is missing"), ("z:1", "b:1", "not both")],
)
def test_a_cluster_is_named_in_exactly_one_way(zookeeper: str, bootstrap: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"zookeeper='HOST:PORT.*{what}$"):
        check_cluster(zookeeper, bootstrap)


@pytest.mark.parametrize("zookeeper", ["/chroot", "  "])
def test_a_connect_string_without_servers_is_none(zookeeper: str) -> None:
    with pytest.raises(ConfigError, match="is not allowed: use HOST:PORT"):
        check_cluster(zookeeper, ())
