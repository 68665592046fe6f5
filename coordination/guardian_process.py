"""A process that waits for the death of another, and then ends its ZooKeeper sessions at once.

Run by guardian.py as `python -I -S -E guardian_process.py`; standard library only, so that it is
small and up at once. It is told by lines of JSON on its standard input, never by arguments or the
environment, which others can read:

```
{"parent": 4711}                                                    first
{"guard": "17a…", "password": "…", "servers": [["host", 2181]], "timeout": 6.0,    per session; said
 "notes": ["/groups/g/events/gone-consumer-…-0000000003"]}              again, it counts anew
{"release": "17a…"}                                                 that session is over
```

It waits on a pidfd, which becomes readable when the parent has exited and at nothing else: not when
it is stopped, not when it forks. Where there is no pidfd the end of the input serves, which forked
children can only delay. Then it says to ZooKeeper, with each session's id and password, what the
parent would have said: that the session is closed. Its ephemeral nodes go, every watch on them fires.
In front of that it makes the nodes of `notes`, so that people can read that the process died; whether
that can be done is nobody's concern.
"""

import json
import os
import select
import signal
import socket
import struct
import time

CLOSE_SESSION = -11
CREATE = 1
DIED = b"its process died"
ATTEMPT = 1.0
PAUSE = 0.1

Session = dict[str, object]


def main() -> None:
    # systemd sends SIGTERM to what is left of a service whose main process has died: its work begins then.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:
        first = unbuffered.readline()  # and not a byte more: the rest is read from the descriptor
    if not first:
        return
    parent = int(json.loads(first)["parent"])
    died = _pidfd(parent)
    alive = os.getppid() == parent  # asked after the pidfd was opened: nothing can slip between
    sessions: dict[str, Session] = {}
    if _listen(died if alive else None, alive, sessions):
        for session in sessions.values():
            _close(session)


def _pidfd(parent: int) -> int | None:
    try:
        return os.pidfd_open(parent)
    except (OSError, AttributeError):
        return None  # gone already, or a system without: the input's end tells


def _listen(died: int | None, alive: bool, sessions: dict[str, Session]) -> bool:
    """Take what the parent says until it is dead. False if it has nothing to guard any more.

    What it had said before it died is in the pipe and is read to the end of that.
    """
    told = b""
    open_ = True
    while open_ or died is not None:
        poller = select.poll()
        for descriptor in ([0] if open_ else []) + ([] if died is None else [died]):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(None if alive else 0)}
        if 0 in ready:
            data = os.read(0, 65536)
            *lines, told = (told + data).split(b"\n")
            for line in lines:
                _take(json.loads(line), sessions)
            open_ = bool(data)
            if not open_ and not sessions:
                return False
        elif died in ready or not alive:
            return True
    return True


def _take(said: dict[str, object], sessions: dict[str, Session]) -> None:
    if "guard" in said:
        sessions[str(said["guard"])] = said
    else:
        sessions.pop(str(said.get("release")), None)


def _close(session: Session) -> None:
    """Tell one server after the other, until one has heard it or the session has timed out anyway."""
    give_up = time.monotonic() + float(str(session["timeout"]))
    servers = session["servers"]
    assert isinstance(servers, list)
    while time.monotonic() < give_up:
        for host, port in servers:
            try:
                _close_at(host, int(port), session)
                return
            except OSError:
                continue
        time.sleep(PAUSE)


def _close_at(host: str, port: int, session: Session) -> None:
    """ZooKeeper's own protocol: connect as the session, say that it is closed, wait for the answer.

    Raises OSError if there is none.
    """
    number = int(str(session["guard"]), 16)
    password = bytes.fromhex(str(session["password"]))
    timeout_ms = int(float(str(session["timeout"])) * 1000)
    connect = struct.pack(">iqiQi", 0, 0, timeout_ms, number, len(password)) + password + b"\0"
    notes = session["notes"]
    assert isinstance(notes, list)
    requests = [connect]
    requests += [_create(number, str(path)) for number, path in enumerate(notes, start=1)]
    requests.append(struct.pack(">ii", len(requests), CLOSE_SESSION))
    with socket.create_connection((host, port), ATTEMPT) as connection:
        connection.sendall(b"".join(map(_counted, requests)))
        if not connection.recv(65536):  # it has no quorum for now, or too many connections
            raise ConnectionResetError(f"{host}:{port} has hung up without an answer")
        while connection.recv(65536):
            pass  # the server closes the connection when the session is closed


def _create(number: int, path: str) -> bytes:
    """A persistent node that says what happened, open to everybody as all of ours are."""
    everybody = struct.pack(">ii", 1, 31) + _counted(b"world") + _counted(b"anyone")
    flags = struct.pack(">i", 0)
    node = _counted(path.encode()) + _counted(DIED)
    return struct.pack(">ii", number, CREATE) + node + everybody + flags


def _counted(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


if __name__ == "__main__":
    main()
