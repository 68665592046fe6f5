"""pyarrow, or an error that names the pip command which installs it."""

from folkmoot.protocol.errors import MissingExtra, pip_command

try:
    import pyarrow as pa
    from pyarrow import compute as pc
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"columns of Avro values need pyarrow, which is not installed: {pip_command('arrow')}"
    ) from error

__all__ = ["pa", "pc"]
