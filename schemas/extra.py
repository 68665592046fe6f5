"""fastavro, or an error that names the pip command which installs it."""

from folkmoot.protocol.errors import MissingExtra

try:
    import fastavro
except ModuleNotFoundError as error:
    raise MissingExtra(
        "Avro values need fastavro, which is not installed: pip install 'folkmoot[avro]'"
    ) from error

__all__ = ["fastavro"]
