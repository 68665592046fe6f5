"""Where the module in C was not built: columns are refused in a sentence, single values are read."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["folkmoot.schemas.columns._speedups"] = None  # what an import of nothing finds
from folkmoot.protocol.errors import MissingExtra
from folkmoot.schemas.values.decoding import decoder
from folkmoot.schemas.values.encoding import encoder
text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
assert decoder(text)(encoder(text)({"a": 3}), 0) == ({"a": 3}, 1)
try:
    import folkmoot.schemas.columns.deserializer
except MissingExtra as error:
    print(error)
"""


def test_columns_name_the_compiler_and_single_values_need_none() -> None:
    command = [sys.executable, "-c", PROGRAM]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "install a C compiler" in answer.stdout
    assert answer.stdout.count("\n") == 1
