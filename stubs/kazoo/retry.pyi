from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kazoo.exceptions import KazooException

_P = ParamSpec("_P")
_T = TypeVar("_T")

class ForceRetryError(Exception): ...
class RetryFailedError(KazooException): ...
class InterruptedError(RetryFailedError): ...

class KazooRetry:
    def __init__(
        self,
        max_tries: int = ...,
        delay: float = ...,
        backoff: float = ...,
        max_jitter: float = ...,
        max_delay: float = ...,
        ignore_expire: bool = ...,
        sleep_func: Callable[[float], object] = ...,
        deadline: float | None = ...,
        interrupt: Callable[[], bool] | None = ...,
    ) -> None: ...
    def reset(self) -> None: ...
    def copy(self) -> KazooRetry: ...
    def __call__(self, func: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
