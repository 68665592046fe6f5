"""A process that waits for the death of another, and then ends its ZooKeeper sessions at once.

guardian.py runs it as `python -I -S -E guardian_process.py`; it uses the standard library only, so that it is
small and starts quickly. Its input are lines of JSON on standard input, since others can read arguments and
the environment:

```
{"parent": 4711}                                                    first
{"guard": "17a…", "password": "…", "servers": [["host", 2181]], "timeout": 6.0}    for each session
{"release": "17a…"}                                                 that session is over
```

A pidfd becomes readable when the parent has exited, and neither when it is stopped nor when it forks. Without
pidfds the end of the input serves, which forked children can delay. Then it closes each session at
ZooKeeper, by the session's id and password: the ephemeral nodes go, and every watch on them fires.
"""

import json
import os
import select
import signal
import socket
import struct
import time

CLOSE_SESSION = -11
ATTEMPT = 1.0
PAUSE = 0.1

Session = dict[str, object]


def main() -> None:
    # systemd sends SIGTERM to the rest of a service when its main process has died: the work begins then.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:
        first = unbuffered.readline()  # not a byte more: `_listen` reads the descriptor
    if not first:
        return
    parent = int(json.loads(first)["parent"])
    died = _pidfd(parent)
    alive = os.getppid() == parent  # after the pidfd was opened, so that no death is missed
    sessions: dict[str, Session] = {}
    if _listen(died if alive else None, alive, sessions):
        for session in sessions.values():
            _close(session)


def _pidfd(parent: int) -> int | None:
    try:
        return os.pidfd_open(parent)
    except (OSError, AttributeError):
        return None  # the parent is gone already, or the system has no pidfds


def _listen(died: int | None, alive: bool, sessions: dict[str, Session]) -> bool:
    """Read the parent's messages until it is dead, then the rest in the pipe. False if no session is left."""
    unread = b""
    open_ = True
    while open_ or died is not None:
        poller = select.poll()
        for descriptor in ([0] if open_ else []) + ([] if died is None else [died]):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(None if alive else 0)}
        if 0 in ready:
            data = os.read(0, 65536)
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                _update_sessions(json.loads(line), sessions)
            open_ = bool(data)
            if not open_ and not sessions:
                return False
        elif died in ready or not alive:
            return True
    return True


def _update_sessions(message: dict[str, object], sessions: dict[str, Session]) -> None:
    if "guard" in message:
        sessions[str(message["guard"])] = message
    else:
        sessions.pop(str(message.get("release")), None)


def _close(session: Session) -> None:
    """Try one server after the other, until one has closed the session or it has timed out anyway."""
    deadline = time.monotonic() + float(str(session["timeout"]))
    servers = session["servers"]
    assert isinstance(servers, list)
    while time.monotonic() < deadline:
        for host, port in servers:
            try:
                _close_at(host, int(port), session)
                return
            except OSError:
                continue
        time.sleep(PAUSE)


def _close_at(host: str, port: int, session: Session) -> None:
    """Connect as the session, close it, and wait for the answer. Raises OSError if there is none."""
    number = int(str(session["guard"]), 16)
    password = bytes.fromhex(str(session["password"]))
    timeout_ms = int(float(str(session["timeout"])) * 1000)
    connect = struct.pack(">iqiQi", 0, 0, timeout_ms, number, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, CLOSE_SESSION)
    with socket.create_connection((host, port), ATTEMPT) as connection:
        connection.sendall(
            b"".join(struct.pack(">i", len(each)) + each for each in (connect, close))
        )
        if not connection.recv(65536):  # it has no quorum for now, or too many connections
            raise ConnectionResetError(f"{host}:{port} closed the connection without an answer")
        while connection.recv(65536):
            pass  # the server closes the connection when the session is closed


if __name__ == "__main__":
    main()
