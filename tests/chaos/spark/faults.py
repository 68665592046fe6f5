"""What is done to whom, and how it ends. Each kind as often as the others, in an order drawn by lot."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from folkmoot.protocol.records import TopicPartition
from tests.chaos.spark.stage import GROUP, MORE, READERS, TOPIC, WRITER, Held, Stage, send

SHORT: Final = 2.0
LONG: Final = 13.0
"""Longer than the sessions of members."""
IDLE: Final = 24.0
"""Longer than `maxProcessingTime`."""
BACK: Final = 300
"""So many records a partition is reset by, at most."""


@dataclass(slots=True)
class Fault:
    """Done to an application or a member, or to nobody in particular; `ended` when peace had come."""

    kind: str
    whom: str
    begun: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Struck:
    """What was done, how long it lasts (s), and what ends it."""

    fault: Fault
    lasts: float
    undo: Callable[[], object]


def _nothing() -> None:
    pass


def _kill(stage: Stage, name: str, kind: str) -> Struck:
    fault = Fault(f"kill {kind or 'app'}", name, time.time())
    for pid in stage.pids(name, kind)[: 1 if kind == "executor" else None]:
        send(pid, signal.SIGKILL)
    return Struck(fault, 0.0, _nothing)


def _stop(stage: Stage, name: str, kind: str) -> Struck:
    fault = Fault(f"stop {kind or 'app'}", name, time.time())
    stopped = [Held(pid) for pid in stage.pids(name, kind)]
    for each in stopped:
        each.send(signal.SIGSTOP)

    def go_on() -> None:
        for each in stopped:
            each.send(signal.SIGCONT)
            each.close()

    long = IDLE if kind == "jvm" else LONG
    return Struck(fault, stage.random.choice((SHORT, long)), go_on)


def _kill_worker(stage: Stage) -> Struck:
    fault = Fault("kill worker", "a", time.time())
    worker = stage.random.choice(stage.spark.workers)
    worker.kill()
    return Struck(fault, SHORT, worker.start)


def _stop_worker(stage: Stage) -> Struck:
    fault = Fault("stop worker", "a", time.time())
    worker = stage.random.choice(stage.spark.workers)
    worker.pause()
    return Struck(fault, stage.random.choice((SHORT, LONG)), worker.resume)


def _kill_member(stage: Stage) -> Struck:
    member = stage.random.choice(stage.living())
    fault = Fault("kill member", member.name, time.time())
    stage.nursery.signal(member.pid, signal.SIGKILL)
    return Struck(fault, SHORT, stage.start_member)


def _stop_member(stage: Stage) -> Struck:
    member = stage.random.choice(stage.living())
    fault = Fault("stop member", member.name, time.time())
    stage.nursery.signal(member.pid, signal.SIGSTOP)
    go_on = partial(stage.nursery.signal, member.pid, signal.SIGCONT)
    return Struck(fault, stage.random.choice((SHORT, LONG)), go_on)


def _expire(stage: Stage) -> Struck:
    name = stage.random.choice(sorted(stage.history.members))
    fault = Fault("expire session", name.partition("-")[0], time.time())
    stage.expire(name)
    return Struck(fault, 0.0, _nothing)


def _kill_leader(stage: Stage) -> Struck:
    fault = Fault("kill leader", "", time.time())
    broker = stage.random.choice(stage.cluster.brokers)  # it leads a third of all partitions
    broker.kill()
    return Struck(fault, stage.random.choice((SHORT, LONG)), broker.start)


def _reset(stage: Stage) -> Struck:
    fault = Fault("reset offsets", "*", time.time())
    stage.look()
    places = stage.random.sample(range(stage.partitions), 3)
    back = {}
    for place in (TopicPartition(TOPIC, number) for number in places):
        offset = stage.history.lives[place].state.offset or 0
        back[place] = max(0, offset - stage.random.randrange(1, BACK))
    stage.admin.reset_offsets(GROUP, back)
    return Struck(fault, 0.0, _nothing)


def _add_partitions(stage: Stage) -> Struck:
    fault = Fault("add partitions", "", time.time())
    if stage.partitions + MORE <= len(stage.history.lives):
        stage.partitions += MORE
        stage.admin.add_partitions(TOPIC, stage.partitions)
    return Struck(fault, 0.0, _nothing)


def _of_app(
    how: Callable[[Stage, str, str], Struck], kind: str, *names: str
) -> Callable[[Stage], Struck]:
    return lambda stage: how(stage, stage.random.choice(names), kind)


KINDS: Final[dict[str, Callable[[Stage], Struck]]] = {
    **{
        f"{word} {kind or 'app'}": _of_app(how, kind, *names)
        for word, how in (("kill", _kill), ("stop", _stop))
        for kind, names in (
            ("", (*READERS, WRITER)),
            ("jvm", (*READERS, WRITER)),
            ("reader", READERS),
            ("executor", ("a",)),
        )
    },
    "kill worker": _kill_worker,
    "stop worker": _stop_worker,
    "kill member": _kill_member,
    "stop member": _stop_member,
    "expire session": _expire,
    "kill leader": _kill_leader,
    "reset offsets": _reset,
    "add partitions": _add_partitions,
}


def dealt(stage: Stage) -> Iterator[tuple[str, str]]:
    """Two kinds for each round, without end."""
    while True:
        kinds = list(KINDS)
        stage.random.shuffle(kinds)
        yield from zip(kinds[::2], kinds[1::2], strict=True)
