"""Checks of partitions and whole numbers that applications give."""

from operator import index
from typing import Final, SupportsIndex

import msgspec

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import shown
from folkmoot.protocol.records import OffsetAndMetadata, TopicPartition

METADATA_BYTES: Final = 512
"""An offset's limit, as JSON: 500 of them fit into one transaction."""
HIGHEST: Final = 2**63 - 1


def check_int(name: str, value: object, least: int = 0, most: int = HIGHEST) -> int:
    """Return a whole number (numpy's too) from `least` to `most` as an int.

    `name` is for the error, as in "offset of orders-0". Raises ConfigError.
    """
    # True and False are whole numbers to Python, and a mistake here.
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if least <= number <= most:
                return number
    raise ConfigError(f"{name} is {shown(value)}: give a whole number from {least} to {most}")


def offset_and_metadata(partition: str, value: object) -> OffsetAndMetadata:
    """Return an offset to commit, from a number or an OffsetAndMetadata. Raises ConfigError."""
    offset: object = value
    metadata: object = ""
    if isinstance(value, OffsetAndMetadata):
        offset, metadata = value
    what = f"the offset to commit for {partition}"
    if not isinstance(metadata, str) or len(msgspec.json.encode(metadata)) - 2 > METADATA_BYTES:
        raise ConfigError(
            f"the metadata to commit for {partition} is {shown(metadata)}: give a text of at most "
            f"{METADATA_BYTES} bytes"
        )
    return OffsetAndMetadata(check_int(what, offset), metadata)


def partition_of(value: object) -> TopicPartition:
    """Return a pair of a topic's name and a number as a TopicPartition. Raises TypeError."""
    match value:
        case (str(topic), SupportsIndex() as number) if not isinstance(number, bool):
            return TopicPartition(topic, index(number))
    raise TypeError(
        f"a partition is a topic and a number, as in [('flights', 0)], not {shown(value)}"
    )
