"""Every api has a row that names its handler, the right that it needs and its quota."""

from folkmoot.brokers.server.request_table import TABLE, Operation, QuotaClass, Resource
from folkmoot.protocol.messages import APIS, Api


def test_every_request_has_a_row() -> None:
    assert set(TABLE) == set(APIS) == set(Api)


def test_only_the_greeting_needs_no_right() -> None:
    free = {api for api, row in TABLE.items() if Operation.NONE is row.operation}
    assert free == {Api.HELLO}
    assert free == {api for api, row in TABLE.items() if row.resource is Resource.NONE}


def test_only_greetings_and_traffic_between_brokers_are_without_a_quota() -> None:
    free = {api for api, row in TABLE.items() if row.quota is QuotaClass.NONE}
    assert free == {Api.HELLO, Api.REPLICA_FETCH}
