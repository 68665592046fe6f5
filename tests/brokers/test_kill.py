"""SIGKILL at any moment of appends, rolls, checkpoints and deletions: what was acknowledged is there."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from folkmoot.brokers.logs import Logs
from tests.brokers.batches import SMALL, read_all

ROUNDS = 12

WRITER = """
import sys
from pathlib import Path
from folkmoot.brokers.background import Background
from folkmoot.brokers.checkpoints import Checkpoints
from folkmoot.brokers.logs import Logs
from folkmoot.brokers.upkeep import Now
from tests.brokers.batches import NOW, SMALL, a_batch

logs = Logs(Path(sys.argv[1]), 1, SMALL)
logs.start()
background = Background(print)
checkpoints = Checkpoints(logs, background)
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    for partition in range(3):
        log = logs.create("flights", "first", partition)
        offset = log.end_offset
        values = [b"%d-%d" % (partition, offset + number) for number in range(1 + turn % 4)]
        log.append([a_batch(value * 9) for value in values], now=NOW, leader_epoch=0)
        if turn % 50 == 0:
            log.delete_before(max(log.start_offset, log.end_offset - 400))
        print(partition, log.start_offset, log.end_offset, flush=True)
    if turn % 20 == 0:
        checkpoints.chore(Now(0.0, NOW))
        background.run_all()
"""


def test_what_was_acknowledged_outlives_any_number_of_kills(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    acknowledged = {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    for _ in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "data")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            lines = [writer.stdout.readline() for _ in range(source.randrange(300))]
            os.kill(writer.pid, signal.SIGKILL)
            lines += writer.stdout.read().splitlines()
        for line in lines:
            words = line.split()
            if len(words) == 3:
                acknowledged[int(words[0])] = (int(words[1]), int(words[2]))
    assert any(end for _, end in acknowledged.values())
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        for partition, (start, end) in acknowledged.items():
            log = logs.create("flights", "first", partition)
            assert log.start_offset >= start
            assert log.end_offset >= end
            # Dense, in order, and each value where it was written: nothing lost, nothing invented.
            found = [each for each in read_all(log) if each[0] >= log.start_offset]
            assert found == [
                (offset, b"%d-%d" % (partition, offset) * 9)
                for offset in range(log.start_offset, log.end_offset)
            ]
