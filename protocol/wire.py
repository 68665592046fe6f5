"""Envelopes: the first frame of every message; payload frames follow it untouched.

```
request   [api, version, correlation id, client id, body]      + payload frames
response  [correlation id, error code, message, body or nil]   + payload frames
```

MessagePack arrays, by msgspec, which checks every type on reading. The
envelope is read first and its body skipped, so that an error can be answered to a correlation id; the
body is then read straight into the one declaration in `messages`. Nothing is made that the
declaration does not ask for: 4 MB of empty maps cost 4 MB, not the 280 MB of 4 million dictionaries.
Whatever a peer sends, the outcome is a message or a typed error.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidRequest,
    ResponseTooLarge,
    UnknownApi,
    UnknownServerError,
    UnsupportedVersion,
    from_wire,
)
from folkmoot.protocol.messages import APIS, MAX_ENTRIES, Api, ApiSpec

MAX_ENVELOPE_BYTES = 4 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_FRAMES = MAX_ENTRIES + 1
MAX_MESSAGE_CHARACTERS = 1000

_Bytes = bytes | bytearray | memoryview
_T = TypeVar("_T")


class RequestEnvelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Who asks for what."""

    api: int
    version: int
    correlation_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    client_id: Annotated[str, Meta(max_length=249)]
    body: msgspec.Raw


class ResponseEnvelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The answer to the request of that correlation id."""

    correlation_id: int
    error: int
    message: str
    body: msgspec.Raw


_pack = msgspec.msgpack.Encoder().encode
_request_envelope = msgspec.msgpack.Decoder(RequestEnvelope)
_response_envelope = msgspec.msgpack.Decoder(ResponseEnvelope)
# By the api's number: its versions, its name for errors, and what reads it.
_requests: dict[int, tuple[ApiSpec, str, msgspec.msgpack.Decoder[Any]]] = {
    api: (spec, api.name, msgspec.msgpack.Decoder(spec.request)) for api, spec in APIS.items()
}
_responses = {
    api: (f"{api.name} response", msgspec.msgpack.Decoder(spec.response))
    for api, spec in APIS.items()
}


def encode_request(api: Api, correlation_id: int, client_id: str, request: Any) -> bytes:
    """The envelope of `request` in the highest version spoken here."""
    return _pack((api, APIS[api].highest, correlation_id, client_id, request))


def decode_envelope(frame: _Bytes) -> RequestEnvelope:
    """The envelope alone, its body unread. Raises InvalidRequest."""
    return _decode("request", _request_envelope, frame)


def decode_body(envelope: RequestEnvelope) -> Any:
    """The request inside. Raises UnknownApi, UnsupportedVersion, InvalidRequest."""
    if envelope.api not in _requests:
        raise UnknownApi(f"api {envelope.api} is not known to this broker")
    spec, name, decoder = _requests[envelope.api]
    if not spec.lowest <= envelope.version <= spec.highest:
        raise UnsupportedVersion(
            f"version {envelope.version} of {name} is not spoken here, "
            f"only {spec.lowest} to {spec.highest}"
        )
    return _decode(name, decoder, envelope.body)


def encode_response(correlation_id: int, response: Any) -> bytes:
    """The envelope of a response; of more results than it holds with all they say, without messages.

    What is too large all the same is answered by ResponseTooLarge.
    """
    envelope = _pack((correlation_id, 0, "", response))
    if len(envelope) > MAX_ENVELOPE_BYTES and hasattr(response, "results"):
        bare = [msgspec.structs.replace(each, message="") for each in response.results]
        envelope = _pack((correlation_id, 0, "", msgspec.structs.replace(response, results=bare)))
    if len(envelope) <= MAX_ENVELOPE_BYTES:
        return envelope
    said = (
        f"an answer of {len(envelope)} bytes exceeds {MAX_ENVELOPE_BYTES}: ask for less at a time"
    )
    return encode_error(correlation_id, ResponseTooLarge(said))


def encode_error(correlation_id: int, error: FolkmootError) -> bytes:
    """The envelope of a request that failed as a whole."""
    return _pack((correlation_id, code_of(error), message_of(error), None))


def code_of(error: FolkmootError) -> int:
    """What an error is called on the wire."""
    return error.code or UnknownServerError.code


def message_of(error: FolkmootError) -> str:
    """What an answer says of an error.

    A file's name in it may hold what is not UTF-8; the answer must leave all the same.
    """
    return str(error)[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()


def decode_response(frame: _Bytes) -> ResponseEnvelope:
    """The envelope of a response. Raises InvalidRequest."""
    return _decode("response", _response_envelope, frame)


def response_body(api: Api, envelope: ResponseEnvelope) -> Any:
    """The response inside. Raises the error that the broker answered, or InvalidRequest."""
    if envelope.error:
        raise from_wire(envelope.error, envelope.message)
    return _decode(*_responses[api], envelope.body)


def _decode(what: str, decoder: msgspec.msgpack.Decoder[_T], data: _Bytes | msgspec.Raw) -> _T:
    size = memoryview(data).nbytes
    if size > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(f"an envelope of {size} bytes exceeds {MAX_ENVELOPE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a valid {what}: {error}") from None
