"""`docs/format.md` says what the code says."""

import re
from pathlib import Path

from folkmoot.protocol import wire
from folkmoot.protocol.batch_header import HEADER_BYTES, LEADER_BYTES, MAX_BODY_BYTES, MAX_RECORDS
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import BY_CODE, RetriableError
from folkmoot.protocol.messages import APIS, MAX_ENTRIES

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
MIB = 1024 * 1024


def test_the_table_of_errors_is_complete() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (yes|no) \|$", TEXT, re.MULTILINE)
    assert [(int(code), name, again == "yes") for code, name, again in rows] == [
        (code, cls.__name__, issubclass(cls, RetriableError))
        for code, cls in sorted(BY_CODE.items())
    ]


def test_the_table_of_apis_is_complete() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \| (\d+) \|", TEXT, re.MULTILINE)
    assert [(name, int(number), int(version)) for name, number, version in rows] == [
        (api.name, api.value, spec.highest) for api, spec in APIS.items()
    ]


def test_sizes_and_limits_are_the_codes() -> None:
    assert f"header of {HEADER_BYTES} bytes" in TEXT
    assert f"Bytes 0 to {LEADER_BYTES - 1} are the *leader's part*" in TEXT
    assert f"| body before compression | {MAX_BODY_BYTES // MIB} MiB |" in TEXT
    assert f"| records in a batch | {MAX_RECORDS:,} |" in TEXT
    assert f"at most {wire.MAX_ENVELOPE_BYTES // MIB} MiB" in TEXT
    assert f"at most {wire.MAX_FRAME_BYTES // MIB} MiB" in TEXT
    assert f"at most {MAX_ENTRIES:,} entries" in TEXT
    codecs = ", ".join(f"{codec.value} {codec.name.lower()}" for codec in Codec)
    assert f"**Codecs**: {codecs}" in TEXT
