from typing import Any

class IPAMPool(dict[str, Any]):
    def __init__(self, subnet: str | None = ...) -> None: ...

class IPAMConfig(dict[str, Any]):
    def __init__(self, driver: str = ..., pool_configs: list[IPAMPool] | None = ...) -> None: ...
