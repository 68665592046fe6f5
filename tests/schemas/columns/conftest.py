"""The flights as values in the wire format."""

import pytest

from folkmoot.console.demo import flights as demo
from folkmoot.schemas.avro.identity import canonical, parse
from tests.schemas.columns.generated import body, framed


@pytest.fixture(scope="session")
def flights() -> tuple[str, list[bytes]]:
    """Their schema, and the first 2,000 of them, of schema 1."""
    text = canonical(demo.schema())
    schema = parse(text)
    return text, [
        framed(1, body(schema, each.value)) for each in demo.read(demo.find_archive(), 2_000)
    ]
