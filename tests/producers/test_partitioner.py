"""The compiled partitioner gives the partitions that the plain one does."""

from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from folkmoot.producers import partitioner
from folkmoot.producers.columns import RecordColumns
from folkmoot.protocol.murmur2 import partition_for
from tests.producers.appenders import COMPILED, needs_compiled


@needs_compiled
@settings(deadline=None, print_blob=True)
@given(keys=st.lists(st.binary(max_size=20) | st.binary(max_size=300), max_size=40))
@example(keys=[])
@example(keys=[b""])
@example(keys=[bytes(length) for length in range(20)])
@example(keys=[b"\xff" * length for length in range(20)])
@example(keys=[b"\x80" * length for length in range(20)])
@example(keys=[b"\x81" * length for length in (1025, 3, 0, 5000, 1024)])
def test_keys_of_lists_and_columns_go_where_each_alone_does(keys: list[bytes]) -> None:
    for count in (1, 12, 1000):
        expected = [partition_for(key, count) for key in keys]
        for kind in (pa.binary(), pa.large_binary()):
            cells: Any = RecordColumns(pa.array([b"no", *keys], kind).slice(1)).values
            assert COMPILED.by_key(cells, count) == partitioner.by_key(cells, count) == expected
        assert COMPILED.by_key(keys, count) == partitioner.by_key(keys, count) == expected
