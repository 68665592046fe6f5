"""Run a module in a later release than this one: `python -m tests.next_release MODULE [ARGUMENT ...]`.

There each api but HELLO has one version more, whose request and response have a field more. A LOG_SIZES
request can name partitions, and each log in the response has a number of segments. The declarations are
changed before anything else is imported.
"""

import runpy
import sys
from collections.abc import Generator
from typing import Any

import msgspec

from folkmoot.protocol import messages
from folkmoot.protocol.messages import APIS, Api, ApiSpec

SEGMENTS = 7


class LogSize(messages._Message, frozen=True):
    """Fields of the former one in another order, and one more."""

    partition: int
    topic: str
    topic_id: str
    size: int
    log_start: int
    log_end: int
    segments: int = -1


class LogSizesResponse(messages._Message, frozen=True):
    logs: list[LogSize]


def _with(kind: type[Any], *fields: tuple[str, Any, Any]) -> type[Any]:
    """The declaration that takes the place of `kind`: with these fields (name, type, default) more."""
    made = msgspec.defstruct(kind.__name__, fields, bases=(kind,), module=kind.__module__)
    setattr(messages, kind.__name__, made)
    return made


def _declare() -> None:
    added = "added", int, 0
    for api, spec in APIS.items():
        if api is Api.HELLO:
            continue
        if api is Api.LOG_SIZES:
            request = _with(spec.request, ("partitions", list[int] | None, None))
            response: type[Any] = LogSizesResponse
        else:
            request, response = _with(spec.request, added), _with(spec.response, added)
        older = {spec.highest: (spec.request, spec.response)}
        APIS[api] = ApiSpec(request, response, spec.highest + 1, older)
    messages.API_OF.clear()
    messages.API_OF.update({spec.request: api for api, spec in APIS.items()})


def _change_handler() -> None:
    from folkmoot.brokers.server.purgatory import Response
    from folkmoot.brokers.server.request_handlers import RequestHandlers

    former = RequestHandlers.describe_logs

    def describe_logs(self: RequestHandlers, body: Any) -> Generator[Any, None, Response]:
        response: Any = yield from former(self, body)
        logs = [
            LogSize(**msgspec.structs.asdict(log), segments=SEGMENTS)
            for log in response.body.logs
            if body.partitions is None or log.partition in body.partitions
        ]
        return Response(LogSizesResponse(logs))

    RequestHandlers.describe_logs = describe_logs  # type: ignore[method-assign]


if __name__ == "__main__":
    assert "folkmoot.protocol.wire" not in sys.modules
    _declare()
    _change_handler()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
