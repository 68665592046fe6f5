"""Envelopes: the first frame of every message; payload frames follow it untouched.

```
request   [api, version, correlation id, client id, body]      + payload frames
response  [correlation id, error code, message, body or nil]   + payload frames
```

These are MessagePack arrays, read by msgspec, which checks every type. The envelope is read first and its
body skipped, so that an error can be answered to a correlation id. The body is then read by its
declaration in `messages`. Only declared types are made: 4 MB of empty maps cost 4 MB, not the 280 MB of
4 million dictionaries. For any bytes of a peer, the outcome is a message or a typed error.
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
from folkmoot.protocol.messages import APIS, MAX_ENTRIES, Api

MAX_ENVELOPE_BYTES = 4 * 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_FRAMES = MAX_ENTRIES + 1
MAX_MESSAGE_CHARACTERS = 1000

_Bytes = bytes | bytearray | memoryview
_T = TypeVar("_T")


class RequestEnvelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request's api, version, sender, and encoded body."""

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
# By api and version: its name for errors, its decoder, and the type to convert it to.
_requests: dict[tuple[int, int], tuple[str, msgspec.msgpack.Decoder[Any], type[Any]]] = {
    (api, version): (api.name, msgspec.msgpack.Decoder(request), spec.request)
    for api, spec in APIS.items()
    for version, (request, _) in spec.versions.items()
}
_responses = {
    (api, version): (f"{api.name} response", msgspec.msgpack.Decoder(response), spec.response)
    for api, spec in APIS.items()
    for version, (_, response) in spec.versions.items()
}


def encode_request(
    api: Api, correlation_id: int, client_id: str, request: Any, version: int | None = None
) -> bytes:
    """Return the envelope of `request` in this version (None: the highest).

    Raises UnsupportedVersion if an older version lacks a field that the request sets, InvalidRequest if it
    does not allow a value, or if the envelope is too large.
    """
    spec = APIS[api]
    if version is None:
        version = spec.highest
    if version != spec.highest:
        name, decoder, _ = _requests[api, spec.highest]
        wanted = _decode(name, decoder, _pack(request))
        older = _converted(name, spec.versions[version][0], wanted)
        if _converted(name, spec.request, older) != wanted:
            raise UnsupportedVersion(
                f"version {version} of {api.name} cannot ask for what version {spec.highest} does: "
                "upgrade the broker"
            )
        request = older
    envelope = _pack((api, version, correlation_id, client_id, request))
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(
            f"a request of {len(envelope)} bytes exceeds {MAX_ENVELOPE_BYTES}: name fewer partitions"
        )
    return envelope


def decode_envelope(frame: _Bytes) -> RequestEnvelope:
    """Return the envelope alone, its body unread. Raises InvalidRequest."""
    return _decode("request", _request_envelope, frame)


def decode_body(envelope: RequestEnvelope) -> Any:
    """Return the request inside, as its highest version declares it.

    Raises UnknownApi, UnsupportedVersion, InvalidRequest.
    """
    known = _requests.get((envelope.api, envelope.version))
    if known is None:
        raise _refusal(envelope)
    name, decoder, newest = known
    return _converted(name, newest, _decode(name, decoder, envelope.body))


def _refusal(envelope: RequestEnvelope) -> FolkmootError:
    try:
        api = Api(envelope.api)
    except ValueError:
        return UnknownApi(f"api {envelope.api} is not known to this broker")
    spec = APIS[api]
    return UnsupportedVersion(
        f"version {envelope.version} of {api.name} is not spoken here, "
        f"only {spec.lowest} to {spec.highest}"
    )


def response_in(api: Api, version: int, response: Any) -> Any:
    """Return a response as this version of its api declares it, without newer fields."""
    spec = APIS[api]
    if version == spec.highest:
        return response
    if isinstance(response, msgspec.Raw):  # encoded beforehand, in the highest version
        response = _responses[api, spec.highest][1].decode(response)
    return msgspec.convert(response, spec.versions[version][1], from_attributes=True)


def encode_response(correlation_id: int, response: Any) -> bytes:
    """Return the envelope of a response, without the results' messages if it is too large with them.

    If it is still too large, the answer is ResponseTooLarge.
    """
    envelope = _pack((correlation_id, 0, "", response))
    if len(envelope) > MAX_ENVELOPE_BYTES and hasattr(response, "results"):
        bare = [msgspec.structs.replace(result, message="") for result in response.results]
        envelope = _pack((correlation_id, 0, "", msgspec.structs.replace(response, results=bare)))
    if len(envelope) <= MAX_ENVELOPE_BYTES:
        return envelope
    message = (
        f"an answer of {len(envelope)} bytes exceeds {MAX_ENVELOPE_BYTES}: ask for less at a time"
    )
    return encode_error(correlation_id, ResponseTooLarge(message))


def encode_error(correlation_id: int, error: FolkmootError) -> bytes:
    """Return the answer to a request that failed as a whole."""
    return _pack((correlation_id, code_of(error), message_of(error), None))


def code_of(error: FolkmootError) -> int:
    """Return an error's number on the wire."""
    return error.code or UnknownServerError.code


def message_of(error: FolkmootError) -> str:
    """Return an error's message for an answer. A file's name in it may not be UTF-8; the answer must be."""
    return str(error)[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()


def decode_response(frame: _Bytes) -> ResponseEnvelope:
    """Return the envelope of a response. Raises InvalidRequest."""
    return _decode("response", _response_envelope, frame)


def response_body(api: Api, envelope: ResponseEnvelope, version: int | None = None) -> Any:
    """Return the response to a request of this version (None: the highest), in its highest version.

    Raises the error that the broker answered, or InvalidRequest.
    """
    if envelope.error:
        raise from_wire(envelope.error, envelope.message)
    name, decoder, newest = _responses[api, APIS[api].highest if version is None else version]
    response = _decode(name, decoder, envelope.body)
    return response if type(response) is newest else _converted(name, newest, response)


def _converted(what: str, kind: type[Any], message: Any) -> Any:
    """Return the message in another version: fields by their names, defaults for missing ones."""
    if type(message) is kind:
        return message
    try:
        return msgspec.convert(message, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"not a valid {what}: {error}") from None


def _decode(what: str, decoder: msgspec.msgpack.Decoder[_T], data: _Bytes | msgspec.Raw) -> _T:
    size = memoryview(data).nbytes
    if size > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(f"an envelope of {size} bytes exceeds {MAX_ENVELOPE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a valid {what}: {error}") from None
