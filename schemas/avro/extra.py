"""fastavro and Apache's avro, or an error that names the pip command which installs them."""

from folkmoot.protocol.errors import MissingExtra, pip_command

try:
    import avro.compatibility
    import avro.errors
    import avro.name
    import avro.schema
    import fastavro
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"Avro values need {error.name}, which is not installed: {pip_command('avro')}"
    ) from error

__all__ = ["avro", "fastavro"]
