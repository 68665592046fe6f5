"""fastavro, or an error that names the pip command which installs it."""

from folkmoot.protocol.errors import MissingExtra, pip_command

try:
    import fastavro
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"Avro values need {error.name}, which is not installed: {pip_command('avro')}"
    ) from error

__all__ = ["fastavro"]
