"""The three ways of a record through the code: `python benchmarks/trace_paths.py [--list] [--rounds 25]`.

A broker, a producer and a member of a group run in this process, with a ZooKeeper in memory. One record is
sent until it is acknowledged, one is fetched until it is handed out (from its place in the log: the consumer
seeks there), and one offset is committed until the call returns. Every function of folkmoot that is called
meanwhile is noted, by the side whose thread called it. A stop is a function that was called in every round:
what happens by the clock in some of them is not on the way.

`folkmoot` is taken from where Python finds it, and classes by their names wherever they are, so that two
states of the code can be compared: `PYTHONPATH=other/tree/src python benchmarks/trace_paths.py`.
"""

import argparse
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final

import folkmoot.protocol

ROOT: Final = Path(str(folkmoot.protocol.__file__)).resolve().parents[1]
FOLDERS: Final = (
    "protocol",
    "network",
    "brokers",
    "coordination",
    "schemas",
    "producers",
    "consumers",
)
SIDES: Final = ("client", "broker")
# Parts of an expression rather than functions; and what stands in for ZooKeeper.
NO_STOPS: Final = re.compile(r"<(lambda|listcomp|setcomp|dictcomp|genexpr|module)>|<locals>\.<")
STAND_IN: Final = "memory_zookeeper.py"


def find(name: str, folder: str) -> Any:
    """The class of that name, in whichever file of the folder it is."""
    sys.path.append(str(ROOT))  # for tests, which are no part of the package
    for path in sorted((ROOT / folder).rglob("*.py")):
        if re.search(rf"^class {name}\b", path.read_text(), re.MULTILINE):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            prefix = "" if folder == "tests" else "folkmoot."
            return getattr(import_module(prefix + module), name)
    raise SystemExit(f"no class {name} in {ROOT / folder}")


class Tracer:
    """Notes the functions called while `recording`, in the order of their first call."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, None]] = {}
        self._recording = False
        self._names: dict[Any, str] = {}
        self._sides: dict[int, str] = {}

    def install(self) -> None:
        """For this thread and all that are started from now on; a thread is on its starter's side."""
        thread_type: Any = threading.Thread  # its insides are none of a type checker's business
        start, bootstrap = thread_type.start, thread_type._bootstrap_inner

        def start_on_side(thread: Any) -> None:
            thread._side = self._side()
            start(thread)

        def bootstrap_on_side(thread: Any) -> None:
            self._sides[threading.get_ident()] = thread._side
            bootstrap(thread)

        thread_type.start, thread_type._bootstrap_inner = start_on_side, bootstrap_on_side
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def on_side(self, side: str) -> None:
        """Where this thread counts from now on, and what it starts."""
        self._sides[threading.get_ident()] = side

    def record(self, action: Callable[[], Any]) -> dict[str, dict[str, None]]:
        """The functions called on each side while `action` runs."""
        self.calls = {side: {} for side in SIDES}
        self._recording = True
        try:
            action()
        finally:
            self._recording = False
        return self.calls

    def _side(self) -> str:
        return self._sides.get(threading.get_ident(), "client")

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._recording:
            return
        code = frame.f_code
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = _name(code)
        if name:
            self.calls[self._side()].setdefault(name)


def _name(code: Any) -> str:
    """As "folder/file.py function"; "" for what is no stop."""
    path = Path(code.co_filename)
    try:
        inside = path.resolve().relative_to(ROOT)
    except (OSError, ValueError):
        return ""
    if (
        inside.parts[0] not in FOLDERS
        or inside.name == STAND_IN
        or NO_STOPS.search(code.co_qualname)
    ):
        return ""
    return f"{inside} {code.co_qualname}"


def trace_paths(
    tracer: Tracer, rounds: int
) -> Iterator[tuple[str, list[dict[str, dict[str, None]]]]]:
    """Each way's name and what was called in each round, after one that is not counted."""
    with ExitStack() as stack:
        ensemble = find(
            "MemoryZooKeeper", "tests" if (ROOT / "tests" / STAND_IN).exists() else "coordination"
        )()
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="folkmoot-ways-")))
        tracer.on_side("broker")
        config = find("BrokerConfig", "brokers")(broker_id=1, data=data / "1", zookeeper="here:1")
        stack.enter_context(find("Broker", "brokers")(config, ensemble.connect))
        tracer.on_side("client")
        options = {"zookeeper": ensemble.connect, "session_timeout": 60.0}
        admin = stack.enter_context(find("Admin", "admin")(zookeeper=ensemble.connect))
        admin.create_topic("t", 1)
        producer = stack.enter_context(find("Producer", "producers")(**options))

        def send() -> None:
            producer.send("t", b"value", key=b"key").result(30)

        yield "produce", [tracer.record(send) for _ in range(rounds + 1)][1:]
        for _ in range(rounds):
            send()
        consumer = stack.enter_context(
            find("Consumer", "consumers")(
                **options, group="g", topics=["t"], auto_commit=False, guardian=False
            )
        )

        def poll_one() -> None:
            while not consumer.poll(1.0, 1):
                pass

        commits = []
        for _ in range(rounds + 1):
            poll_one()
            commits.append(tracer.record(consumer.commit))

        def fetch() -> None:
            consumer.seek(("t", 0), 0)
            poll_one()

        yield "fetch", [tracer.record(fetch) for _ in range(rounds + 1)][1:]
        yield "commit", commits[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else "")
    parser.add_argument("--list", action="store_true", help="name the functions, too")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    tracer = Tracer()
    tracer.install()
    for path_name, found in trace_paths(tracer, arguments.rounds):
        stops = {
            side: [name for name in found[0][side] if all(name in each[side] for each in found)]
            for side in SIDES
        }
        counts = ", ".join(f"{len(stops[side])} in the {side}" for side in SIDES)
        print(f"{path_name}: {sum(map(len, stops.values()))} stops, {counts}")
        for side in SIDES if arguments.list else ():
            for name in stops[side]:
                print(f"    {side}  {name}")


if __name__ == "__main__":
    main()
