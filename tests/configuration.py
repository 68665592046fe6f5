"""Writes `docs/configuration.md` from the declarations of the options: `python -m tests.configuration`."""

from collections.abc import Iterator
from typing import Any, Final

from folkmoot.admin.config import AdminConfig
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.options.declared import read_documentation
from folkmoot.consumers.client.consumer import ConsumerOptions
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.producers.config import ProducerConfig
from folkmoot.protocol.options import declarations
from folkmoot.spark_apps.options.config import BatchConfig, SinkConfig, StreamConfig
from tests.tree import ROOT

PAGE: Final = ROOT / "docs" / "configuration.md"

BEGINNING: Final = """# Configuration

Every option there is, made from the code that checks it by `python -m tests.configuration`.
Durations are numbers of seconds, sizes whole numbers of bytes.
An option that is unknown, of a wrong type or outside its range is a `ConfigError` that names it.
Type checkers find the first two before anything runs.
"""

SECTIONS: Final[tuple[tuple[str, Any, str], ...]] = (
    (
        "Producers",
        ProducerConfig,
        "Keywords of `Producer` and `AsyncProducer`: `Producer(zookeeper=…, linger=0.02)`.",
    ),
    (
        "Consumers",
        ConsumerOptions,
        "Keywords of `Consumer` and `AsyncConsumer`, whose callbacks may be coroutine functions.",
    ),
    ("Administration", AdminConfig, "Keywords of `Admin` and `AsyncAdmin`."),
    (
        "Brokers",
        BrokerConfig,
        "In the file that `folkmoot broker --config FILE` names (TOML), in the environment as "
        "`FOLKMOOT_<OPTION>` (`FOLKMOOT_SCRUB_PERIOD=86400`), or as a flag (`folkmoot broker --help`); "
        "what is said later in this list counts. `none` is written for None.",
    ),
    (
        "Topics",
        LogConfig,
        "Of one topic: `folkmoot topic create NAME --config option=value`, `folkmoot topic config NAME "
        "option=value`. Of all topics that have none of their own: `[log]` in a broker's file, "
        "`FOLKMOOT_LOG_<OPTION>`, `--set log.option=value`.",
    ),
    (
        "Spark streams",
        StreamConfig,
        'Options of `spark.readStream.format("folkmoot")`: `.option("group", "delays")` ([Spark](spark.md)). '
        "Lengths of time are seconds, or `15m`; sizes bytes, or `64MiB`. `none` is written for None.",
    ),
    (
        "Spark batch reads",
        BatchConfig,
        'Options of `spark.read.format("folkmoot")`.',
    ),
    (
        "Spark writes",
        SinkConfig,
        'Options of `df.writeStream.format("folkmoot")` and `df.write.format("folkmoot")`.',
    ),
)


def page() -> str:
    return "\n".join([BEGINNING, *(line for section in SECTIONS for line in _section(*section))])


def _section(title: str, config: Any, how: str) -> Iterator[str]:
    yield from (f"## {title}", "", how, "")
    yield from ("| option | what it may be | default | meaning |", "|---|---|---|---|")
    for (name, option), declared in zip(
        read_documentation(config).items(), declarations(config).values(), strict=True
    ):
        default = f"`{option.default}`" if option.default else "required"
        number = str(declared).removeprefix("a ")
        kind = number if declared.is_number else f"`{option.annotation}`"
        cells = [f"`{name}`", kind, default, " ".join(option.meaning.split())]
        yield " | ".join(["", *(cell.replace("|", "\\|") for cell in cells), ""]).strip()
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
