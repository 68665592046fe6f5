"""Conducts the demo: starts everything, feeds the flights, looks on, kills, and counts in the end."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from folkmoot.console.demo import checks, direct, flights, report
from folkmoot.console.demo.checks import Consumed, Showed
from folkmoot.console.demo.cluster import Onlooker
from folkmoot.console.demo.direct import Sums
from folkmoot.console.demo.members import SPARK
from folkmoot.console.demo.passes import LOOK_EVERY, Pass, Where
from folkmoot.console.demo.producer import Feed, Pace
from folkmoot.console.demo.report import Bar, Screen
from folkmoot.console.demo.story import DemoFailed, Stage, Story
from folkmoot.console.running.java import find_java
from folkmoot.console.running.processes import EmbeddedCluster

BROKERS: Final = 3
PLAIN: Final = ("plain-1", "plain-2", "plain-3")

PACED: Final = 40.0
"""How long the first pass is meant to take, in seconds; longer if the group needs longer."""
TURN: Final = 0.02
SLICE: Final = 2_000
JOIN_TIMEOUT: Final = 240.0
STORY_TIMEOUT: Final = 240.0
PROCESS_TIMEOUT: Final = 120.0


class Demo:
    """The two passes, in the order in which they are shown.

    The conductor is one thread of one process: it runs the producer and looks at the group from
    outside. The members are processes of their own, and die with this one.
    """

    def __init__(self, archive: Path, total: int, directory: Path) -> None:
        self._archive = archive
        self._total = total
        self._directory = directory
        self._screen = Screen()
        self._facts: list[tuple[str, str]] = []

    def run(self) -> list[str]:
        """→ what disagrees; nothing if all is well."""
        java = find_java()
        self._screen.line(
            f"starting ZooKeeper and {BROKERS} brokers, Java {java.version} from {java.source}"
        )
        with (
            EmbeddedCluster(self._directory / "cluster", BROKERS) as cluster,
            Onlooker(cluster.zookeeper) as onlooker,
        ):
            where = Where(cluster.zookeeper, self._directory)
            first = Pass(where, "flights", "delays", onlooker, self._screen)
            consumed, wrong = self._first(first)
            second = Pass(where, "flights-again", "delays-again", onlooker, self._screen)
            wrong += [f"second pass: {each}" for each in self._second(second, consumed.expected)]
        print()
        report.carriers(consumed.carriers)
        print()
        report.summary(self._facts)
        return wrong

    # -- the first pass: a group at work ----------------------------------------------------------

    def _first(self, this: Pass) -> tuple[Consumed, list[str]]:
        with ExitStack() as stack:
            stack.enter_context(this)
            feed = stack.enter_context(self._feed(this))
            schema_id = feed.schema_id  # registered before Spark asks for its columns
            this.members.start_spark()
            for name in PLAIN:
                this.members.start_plain(name)
            names = ", ".join(this.members.running)
            self._screen.line(f"started {names}, members of the group {this.group}")
            expected = direct.by_carrier(self._archive, self._total)
            this.wait(this.all_own, JOIN_TIMEOUT, "not every member got partitions")
            story = Story(this.members, this.watch, this.store, this.committed)
            self._screen.line(f"sending flights, Avro schema {schema_id}")
            with self._screen.bar("flights sent", self._total) as bar:
                self._send_paced(feed, story, this, bar)
            this.drain()
            rebalances = this.watch.generation
            this.members.stop()
            consumed = this.consumed(self._total, expected)
        showed = Showed(
            spark=SPARK,
            gained=this.watch.gained[SPARK],
            given_up=this.watch.given_up[SPARK],
            uncommitted=story.uncommitted,
        )
        self._note_first(feed, consumed, showed, rebalances)
        return consumed, checks.of_results(consumed) + checks.of_story(consumed, showed)

    def _send_paced(self, feed: Feed, story: Story, this: Pass, bar: Bar) -> None:
        """Send all flights, slowly enough for the story to happen meanwhile."""
        started = time.monotonic()
        pace = Pace(self._total, PACED, started)
        look_at = started
        while feed.sent < self._total:
            now = time.monotonic()
            feed.send(min(SLICE, pace.due(now, story.limit) - feed.sent))
            bar.reach(feed.sent)
            if now >= look_at:
                look_at = now + LOOK_EVERY
                this.look()
                for line in story.step(feed.sent / self._total):
                    self._screen.line(line)
            if now - started > STORY_TIMEOUT and story.stage is not Stage.DONE:
                raise DemoFailed(f"the group did not get beyond the stage {story.stage.value}")
            time.sleep(TURN)
        feed.finish()

    def _note_first(self, feed: Feed, consumed: Consumed, showed: Showed, rebalances: int) -> None:
        at_end = sum(consumed.committed.get(each, 0) == end for each, end in consumed.ends.items())
        shares = (f"{name} {work.applied:,}" for name, work in consumed.members.items())
        self._facts += [
            ("flights sent, paced", f"{feed.sent:,} in {feed.seconds:.1f} s"),
            ("processed by", ", ".join(shares)),
            ("rebalances", str(rebalances)),
            ("partitions gained / given up by Spark", f"{showed.gained} / {showed.given_up}"),
            ("processed but not committed at the kill", f"{showed.uncommitted:,}"),
            ("delivered more than once", f"{consumed.repeated:,} (each counted once)"),
            ("committed offset = end offset", f"{at_end} of {len(consumed.ends)} partitions"),
        ]

    # -- the second pass: as fast as it goes ------------------------------------------------------

    def _second(self, this: Pass, expected: Mapping[str, Sums]) -> list[str]:
        self._screen.line("again, as fast as it goes")
        with ExitStack() as stack:
            stack.enter_context(this)
            with self._feed(this) as feed, self._screen.bar("flights sent", self._total) as bar:
                while feed.send(SLICE):
                    bar.reach(feed.sent)
                feed.finish()
            for name in PLAIN:
                this.members.start_plain(name)
            with self._screen.bar("flights processed", self._total) as bar:
                seconds, count = self._time_processing(this, bar)
            this.drain()
            this.members.stop()
            consumed = this.consumed(self._total, expected)
        self._facts += [
            ("produced per second", f"{feed.sent / feed.seconds:,.0f} (Avro encoding included)"),
            ("consumed per second", f"{count / seconds:,.0f} (decoding and results included)"),
        ]
        return checks.of_results(consumed)

    def _time_processing(self, this: Pass, bar: Bar) -> tuple[float, int]:
        """Seconds from the first results seen to the last, and how many flights came in them."""
        seen, since = 0, 0.0
        deadline = time.monotonic() + PROCESS_TIMEOUT
        while True:
            this.members.look()
            done = sum(this.store.positions().values())
            now = time.monotonic()
            bar.reach(done)
            if done and not seen:
                seen, since = done, now
            elif done >= self._total:
                return now - since, self._total - seen
            if now > deadline:
                raise DemoFailed(f"only {done} of {self._total} flights were processed")
            time.sleep(TURN)

    def _feed(self, this: Pass) -> Feed:
        source = flights.read(self._archive, self._total)
        return Feed(this.zookeeper, this.topic, source)
