"""A broker whose limit of open files is low, and peers that take all they can."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from folkmoot.protocol.messages import Api, HelloRequest
from tests.brokers.parts import Peer
from tests.processes import told
from tests.tree import ROOT
from tests.waiting import eventually

OPEN_FILES = 500


def test_a_broker_refuses_connections_before_it_has_no_descriptors_left_and_says_so(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with ExitStack() as stack, log.open("w") as output:
        process = stack.enter_context(
            subprocess.Popen(
                [
                    *("sh", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "sh", sys.executable),
                    *("-m", "tests.brokers.killed_broker", str(tmp_path / "data")),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        print("go", file=process.stdin, flush=True)
        address = process.stdout.readline().strip()
        host, _, port = address.rpartition(":")
        with Peer(address) as peer, ExitStack() as crowd:
            peer.call(Api.HELLO, HelloRequest("before"))
            for _ in range(OPEN_FILES):
                with suppress(OSError):
                    crowd.enter_context(socket.create_connection((host, int(port)), 10.0))
            eventually(lambda: "refused" in log.read_text())
            peer.call(Api.HELLO, HelloRequest("meanwhile"))
            assert str(OPEN_FILES) in told(process.pid, "limits")
        with Peer(address) as peer:
            peer.call(Api.HELLO, HelloRequest("afterwards"))
