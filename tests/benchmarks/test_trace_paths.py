"""The three ways of a record, as the program tells them."""

import re
import subprocess
import sys

from tests.tree import ROOT


def test_the_ways_of_a_record_are_told_with_their_stops() -> None:
    command = [sys.executable, "benchmarks/trace_paths.py", "--rounds", "2", "--list"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ways = re.findall(r"^(\w+): (\d+) stops, (\d+) in the client, (\d+) in the broker$", said, re.M)
    assert [way for way, *_ in ways] == ["produce", "fetch", "commit"]
    assert all(int(stops) == int(ours) + int(theirs) for _, stops, ours, theirs in ways)
    assert re.search(r"^    client  producers/\S+ \w+\.send$", said, re.M)
    assert re.search(r"^    broker  protocol/wire.py decode_body$", said, re.M)
