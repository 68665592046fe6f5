"""`send` without a method between the application and the appender."""

from typing import Any, ClassVar, Protocol
from weakref import WeakSet


class _DirectSender(Protocol):
    def _choose_send(self) -> None: ...


class DirectSend(type):
    # A class whose instances have a `send` of their own, until that of the class is replaced:
    # `mock.patch.object(Producer, "send")` would not reach them otherwise. `help` of such a class would
    # show this metaclass's docstring, so that has none.
    __doc__ = type.__dict__["__doc__"]

    senders: ClassVar["WeakSet[_DirectSender]"] = WeakSet()

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "send":
            for sender in list(DirectSend.senders):
                sender._choose_send()
