"""pyarrow and the module in C, or an error that says how to install them."""

from folkmoot.protocol.errors import MissingExtra, pip_command

try:
    import pyarrow as pa
    from pyarrow import compute as pc
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"columns of Avro values need pyarrow, which is not installed: {pip_command('arrow')}"
    ) from error
try:
    from folkmoot.schemas.columns import _speedups
except ImportError as error:
    raise MissingExtra(
        "columns of Avro values need a module in C, which was not built: install a C compiler, then "
        f"{pip_command('arrow')} --force-reinstall; AvroDeserializer does without"
    ) from error

__all__ = ["_speedups", "pa", "pc"]
