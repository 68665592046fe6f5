"""Envelopes: the first frame of every message; payload frames follow it untouched.

```
request   [api, version, correlation id, client id, body]      + payload frames
response  [correlation id, error code, message, body or nil]   + payload frames
```

MessagePack arrays. Decoding bounds sizes first, then checks every type against the one declaration
in `requests`; whatever a peer sends, the outcome is a message or a typed error.
"""

from typing import Annotated, Any, TypeVar

import msgpack
import msgspec
from msgspec import Meta

from folkmoot.protocol.errors import (
    BY_CODE,
    FolkmootError,
    InvalidRequest,
    UnknownApi,
    UnknownServerError,
    UnsupportedVersion,
    from_wire,
)
from folkmoot.protocol.requests import APIS, Api

MAX_ENVELOPE_BYTES = 4 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_FRAMES = 10_001

_Bytes = bytes | bytearray | memoryview
_T = TypeVar("_T")


class RequestEnvelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Who asks for what."""

    api: int
    version: int
    correlation_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    client_id: Annotated[str, Meta(max_length=249)]
    body: Any


class ResponseEnvelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The answer to the request of that correlation id."""

    correlation_id: int
    error: int
    message: str
    body: Any


def encode_request(api: Api, correlation_id: int, client_id: str, request: Any) -> bytes:
    """The envelope of `request` in the highest version spoken here."""
    version = APIS[api].highest
    return _pack([api, version, correlation_id, client_id, msgspec.to_builtins(request)])


def decode_envelope(frame: _Bytes) -> RequestEnvelope:
    """The envelope alone, so that an error can be answered to its correlation id. Raises InvalidRequest."""
    return _convert(_unpack(frame), RequestEnvelope)


def decode_body(envelope: RequestEnvelope) -> Any:
    """The request inside. Raises UnknownApi, UnsupportedVersion, InvalidRequest."""
    if envelope.api not in APIS:
        raise UnknownApi(f"api {envelope.api} is not known to this broker")
    api = Api(envelope.api)
    spec = APIS[api]
    if not spec.lowest <= envelope.version <= spec.highest:
        raise UnsupportedVersion(
            f"version {envelope.version} of {api.name} is not spoken here, "
            f"only {spec.lowest} to {spec.highest}"
        )
    return _convert(envelope.body, spec.request)


def encode_response(correlation_id: int, response: Any) -> bytes:
    """The envelope of a response."""
    return _pack([correlation_id, 0, "", msgspec.to_builtins(response)])


def encode_error(correlation_id: int, error: FolkmootError) -> bytes:
    """The envelope of a request that failed as a whole."""
    code = error.code if error.code in BY_CODE else UnknownServerError.code
    return _pack([correlation_id, code, str(error)[:1000], None])


def decode_response(frame: _Bytes) -> ResponseEnvelope:
    """The envelope of a response. Raises InvalidRequest."""
    return _convert(_unpack(frame), ResponseEnvelope)


def response_body(api: Api, envelope: ResponseEnvelope) -> Any:
    """The response inside. Raises the error that the broker answered, or InvalidRequest."""
    if envelope.error:
        raise from_wire(envelope.error, envelope.message)
    return _convert(envelope.body, APIS[api].response)


def _pack(message: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def _unpack(frame: _Bytes) -> Any:
    if len(frame) > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(f"an envelope of {len(frame)} bytes exceeds {MAX_ENVELOPE_BYTES}")
    try:
        return msgpack.unpackb(frame, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise InvalidRequest(f"a frame is not an envelope: {error}") from None


def _convert(value: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidRequest(f"not a valid {kind.__name__}: {error}") from None
