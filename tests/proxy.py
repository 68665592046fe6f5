"""A TCP proxy on 127.0.0.1 that can be cut: a network between a client and a server, for tests."""

import socket
from contextlib import suppress
from threading import Lock, Thread
from typing import Self


class Proxy:
    """Passes connections on to `127.0.0.1:target`, until it is cut or told to lose answers.

    One thread accepts, two per connection copy bytes. `cut`, `heal` and `lose_answers` may be called
    from any thread and take effect before they return.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = Lock()
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._loses_answers = False
        self._refusals = 0
        self.accepted = 0
        self.lost_answers = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections; new ones break at once, until healed."""
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                # Both ends read an end of file; the copying threads close their sockets.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def cut_and_refuse(self, connections: int) -> None:
        """Break all connections and the next `connections` of them, as a server that restarts does."""
        with self._lock:
            self._refusals = connections
        self.cut()
        self.heal()

    def lose_answers(self) -> None:
        """What the server sends goes nowhere, until healed; requests get through."""
        with self._lock:
            self._loses_answers = True

    def heal(self, *, answers: bool = True) -> None:
        """New connections get through; without `answers`, one way only."""
        with self._lock:
            self._is_cut = False
            self._loses_answers = not answers

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.accepted += 1
            with self._lock:
                if self._is_cut or self._refusals:
                    self._refusals = max(0, self._refusals - 1)
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the server is down
                    client.close()
                    continue
                self._open += [client, server]
            Thread(
                target=self._copy, args=(client, server, False), name="proxy", daemon=True
            ).start()
            Thread(
                target=self._copy, args=(server, client, True), name="proxy", daemon=True
            ).start()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while received := source.recv(65536):
                with self._lock:
                    lost = answers and self._loses_answers
                if lost:
                    self.lost_answers += 1
                else:
                    sink.sendall(received)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if source in self._open:
                self._open.remove(source)
        source.close()

    def __enter__(self) -> Self:
        Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A listener must be shut down to wake the thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
