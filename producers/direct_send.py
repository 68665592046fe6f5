"""`send` without a method between the application and the appender."""

from collections.abc import Callable
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

    @staticmethod
    def set_send(
        client: Any, declared: Callable[..., Any], direct: Callable[..., Any] | None
    ) -> None:
        """Give `client` the `direct` way, unless there is none, or its class has another `send` than
        the one that was `declared`."""
        DirectSend.senders.add(client)
        if direct is not None and type(client).send is declared:
            client.send = direct
        else:
            vars(client).pop("send", None)
