"""A broker's socket that answers what the test tells it to, in a thread of its own."""

import threading
from collections.abc import Callable
from typing import Any, Self

import zmq

from folkmoot.protocol import wire
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.messages import APIS, Api, ApiVersions, HelloResponse

Answer = list[bytes] | None
Handler = Callable[[wire.RequestEnvelope, Any, list[bytes]], Any]


def hello(lowest: int = 0, highest: int = 0) -> HelloResponse:
    return HelloResponse(1, 1_000_000, [ApiVersions(api, lowest, highest) for api in APIS])


class StubBroker:
    """Answers HELLO; hands everything else to `handler(envelope, body, payloads)`.

    The handler returns a response, raises a FolkmootError to be answered, returns a list of raw
    frames to be sent as they are, or None to stay silent.
    """

    def __init__(self, handler: Handler, *, port: int = 0) -> None:
        self.handler = handler
        self.greeting: Any = hello()
        self.hellos = 0
        self.seen: list[tuple[Api, Any, list[bytes]]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 1)  # what it has not taken stays on its peer's side
        self._socket.bind(f"tcp://127.0.0.1:{self._port or '*'}")
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.address = endpoint.rstrip(b"\0").decode().removeprefix("tcp://")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(5):
                peer, *frames = self._socket.recv_multipart()
                for message in self._answers(frames):
                    self._socket.send_multipart([peer, *message])
        self._socket.close(linger=0)

    def _answers(self, frames: list[bytes]) -> list[list[bytes]]:
        envelope = wire.decode_envelope(frames[0])
        body = wire.decode_body(envelope)
        if envelope.api == Api.HELLO:
            self.hellos += 1
            if isinstance(self.greeting, HelloResponse):
                return [[wire.encode_response(envelope.correlation_id, self.greeting)]]
            return [self.greeting] if self.greeting else []
        self.seen.append((Api(envelope.api), body, frames[1:]))
        try:
            answer = self.handler(envelope, body, frames[1:])
        except FolkmootError as error:
            return [[wire.encode_error(envelope.correlation_id, error)]]
        if answer is None:
            return []
        if isinstance(answer, list):
            return [answer]
        return [[wire.encode_response(envelope.correlation_id, answer)]]
