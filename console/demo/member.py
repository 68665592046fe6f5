"""One plain member of the group: a process that adds flights up and remembers how far it is.

What it does is told as JSON, one line an event, on standard output.
"""

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from folkmoot.console.demo.store import Departure, ResultStore, results
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import ClosedError, FolkmootError, NotOwner, RequestTimeout
from folkmoot.protocol.records import TopicPartition
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.deserializer import AvroDeserializer

POLL: Final = 0.2
MOST_RECORDS: Final = 2_000
TELL_EVERY: Final = 0.2


class Work:
    """The order of things: results and next offset in one transaction, then the group's commit.

    A kill between the two costs nothing but work: the next owner gets those records again, and the
    store leaves them out.
    """

    def __init__(self, store: ResultStore, commit_every: float) -> None:
        self._store = store
        self._commit_every = commit_every
        self._commit_at = time.monotonic() + commit_every
        self._tell_at = 0.0
        self.applied = self.repeated = self.uncommitted = 0

    def turn(self, consumer: Consumer[bytes, Departure]) -> None:
        """Take records, apply them, commit when it is time."""
        records = consumer.poll(POLL, MOST_RECORDS)
        if records:
            done = self._store.apply(results(records))
            self.applied += done.applied
            self.repeated += done.repeated
            self.uncommitted += len(records)
        if time.monotonic() >= self._commit_at:
            self.commit(consumer)
        if time.monotonic() >= self._tell_at:
            self.tell()

    def commit(self, consumer: Consumer[bytes, Departure]) -> None:
        """Tell the group how far the store is. What is refused is somebody else's by now."""
        self._commit_at = time.monotonic() + self._commit_every
        try:
            consumer.commit()
        except (NotOwner, RequestTimeout) as error:
            say("refused", reason=str(error))
        self.uncommitted = 0

    def tell(self) -> None:
        now = time.monotonic()
        self._tell_at = now + TELL_EVERY
        say(
            "progress",
            applied=self.applied,
            repeated=self.repeated,
            uncommitted=self.uncommitted,
            next_commit=round(self._commit_at - now, 3),
        )


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "at": round(time.time(), 3), **facts}), flush=True)


def stop_requests() -> threading.Event:
    """Set by the first SIGTERM. Later ones are ignored: the last moments of a process have no handler."""
    asked = threading.Event()

    def ask(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asked.set()

    signal.signal(signal.SIGTERM, ask)
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--zookeeper", "--group", "--topic", "--name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--commit-every", type=float, default=2.0)
    parser.add_argument("--session-timeout", type=float, default=6.0)
    args = parser.parse_args(arguments)
    try:
        run(args)
    except FolkmootError as error:
        say("failed", reason=f"{type(error).__name__}: {error}")
        return 1
    say("stopped")
    return 0


def run(args: argparse.Namespace) -> None:
    """Until SIGTERM, which ends it in order: what is applied is committed, then the group is left."""
    stopping = stop_requests()
    with (
        ResultStore(args.results, args.name) as store,
        SchemaRegistry(args.zookeeper) as registry,
    ):
        work = Work(store, args.commit_every)

        def revoked(
            consumer: Consumer[bytes, Departure], partitions: Sequence[TopicPartition]
        ) -> None:
            # All that was handed out is applied: `poll`, which calls this, comes after `apply`.
            # On close everything was committed before, and the consumer takes no more.
            with suppress(ClosedError):
                work.commit(consumer)
            say("revoked", partitions=_numbers(partitions))

        with Consumer(
            zookeeper=args.zookeeper,
            group=args.group,
            topics=(args.topic,),
            client_id=args.name,
            auto_commit=False,
            session_timeout=args.session_timeout,
            value_deserializer=AvroDeserializer(registry, Departure),
            on_assign=lambda _, partitions: say("assigned", partitions=_numbers(partitions)),
            on_revoke=revoked,
            on_lost=lambda _, partitions: say("lost", partitions=_numbers(partitions)),
        ) as consumer:
            while not stopping.is_set():
                work.turn(consumer)
            work.commit(consumer)
            work.tell()


def _numbers(partitions: Sequence[TopicPartition]) -> list[int]:
    return sorted(partition.partition for partition in partitions)


if __name__ == "__main__":
    sys.exit(main())
