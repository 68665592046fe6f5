"""One code, one class, for ever."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import pytest

import folkmoot
from folkmoot.protocol import errors
from folkmoot.protocol.errors import (
    BY_CODE,
    FolkmootError,
    RetriableError,
    UnknownServerError,
    from_wire,
)

# As Confluent's registry answers, whose clients know them.
REGISTRY_CODES = {
    409: "IncompatibleSchema",
    40401: "SubjectNotFound",
    40402: "VersionNotFound",
    40403: "SchemaNotFound",
    40404: "SubjectSoftDeleted",
    40405: "SubjectNotSoftDeleted",
    40406: "VersionSoftDeleted",
    40407: "VersionNotSoftDeleted",
    40408: "NoSubjectCompatibility",
    40409: "NoSubjectMode",
    42201: "InvalidSchema",
    42202: "InvalidVersion",
    42203: "InvalidCompatibility",
    42204: "InvalidMode",
    42205: "OperationNotPermitted",
    42206: "ReferenceExists",
    42208: "InvalidSubject",
}

# Codes are never reused or renumbered; a new error gets a new line here.
CODES = {
    1: "UnknownServerError",
    2: "CorruptBatch",
    3: "UnknownTopicOrPartition",
    4: "OffsetOutOfRange",
    5: "NotLeader",
    6: "BatchTooLarge",
    7: "InvalidRequest",
    8: "UnsupportedVersion",
    9: "UnknownApi",
    10: "UnsupportedCodec",
    11: "StorageError",
    12: "BrokerStopping",
    13: "Overloaded",
    14: "StaleTopicId",
    15: "DiskFull",
    16: "OutOfOrderSequence",
    17: "ProducerFenced",
    18: "UnknownProducer",
    19: "UnknownFetch",
    20: "ResponseTooLarge",
    21: "FencedLeaderEpoch",
    22: "UnknownLeaderEpoch",
    23: "NotEnoughReplicas",
    24: "NotEnoughReplicasAfterAppend",
    25: "OffsetNotAvailable",
    26: "UnknownReplica",
    27: "RequestTimeout",
    29: "LogTruncated",
    30: "NoProducerId",
    31: "ZooKeeperUnreachable",
    32: "SchemaRefused",
    33: "SchemaNotFound",
}
RETRIABLE = {3, 5, 11, 12, 13, 14, 15, 19, 21, 22, 23, 24, 25, 26, 27, 30, 31}


def classes() -> list[type[FolkmootError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, FolkmootError)
    ]


def test_the_codes_are_what_they_were() -> None:
    assert {code: cls.__name__ for code, cls in BY_CODE.items()} == CODES
    assert {code for code, cls in BY_CODE.items() if issubclass(cls, RetriableError)} == RETRIABLE


def test_no_two_classes_share_a_code() -> None:
    coded = [cls for cls in classes() if "code" in vars(cls) and cls.code]
    assert {cls.code: cls for cls in coded} == BY_CODE
    assert len(coded) == len(BY_CODE)


def test_codes_fit_the_wire_and_none_means_no_error() -> None:
    assert all(0 < code < 2**15 for code in BY_CODE)


def test_a_code_becomes_its_class_with_the_brokers_sentence() -> None:
    for code, cls in BY_CODE.items():
        error = from_wire(code, "a sentence")
        assert (type(error), str(error), error.code) == (cls, "a sentence", code)


def test_an_unknown_code_is_an_unknown_server_error_that_names_it() -> None:
    for code in (-1, 250, 9999, 2**63):
        error = from_wire(code, "from the future")
        assert type(error) is UnknownServerError
        assert str(code) in str(error)
        assert "from the future" in str(error)


def test_every_error_says_what_it_means() -> None:
    for cls in classes():
        assert cls.__doc__, cls


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'folkmoot[avro]'"),
        ("{}", "pip install 'folkmoot[avro]'"),
        ('{"url": "https://host/folkmoot.zip"}', "pip install 'folkmoot[avro]'"),
        ('{"url": "file:///a%20b/src", "dir_info": {}}', "pip install '/a b/src[avro]'"),
        (
            '{"url": "file:///src", "dir_info": {"editable": true}}',
            "pip install -e '/src[avro]'",
        ),
    ],
)
def test_an_extra_is_installed_beside_what_is_installed(
    origin: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: installed)
    assert errors.pip_command("avro") == command


def test_each_error_of_the_registry_has_the_code_that_its_clients_know() -> None:
    found = {getattr(errors, name).error_code: name for name in REGISTRY_CODES.values()}
    assert found == REGISTRY_CODES


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in folkmoot.__all__
        if isinstance(getattr(folkmoot, name), type)
        and issubclass(getattr(folkmoot, name), Exception)
    ),
)
def test_every_public_error_goes_from_one_process_to_another(name: str) -> None:
    """As multiprocessing, concurrent.futures and Spark send it."""
    kind = getattr(folkmoot, name)
    parameters = [
        each
        for each in inspect.signature(kind.__init__).parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
    ]
    error = kind("why", *([{"a": 1}] * (len(parameters) - 1)))
    error.note = "added later"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args) == (str(error), error.args)
    assert vars(again) == vars(error)
    assert str(copy.copy(error)) == "why"
