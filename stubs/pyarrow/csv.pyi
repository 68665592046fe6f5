from typing import Any

from pyarrow import DataType, Table

class ConvertOptions:
    def __init__(
        self,
        *,
        null_values: list[str] = ...,
        strings_can_be_null: bool = ...,
        column_types: dict[str, DataType] = ...,
    ) -> None: ...

def read_csv(input_file: Any, *, convert_options: ConvertOptions = ...) -> Table: ...
