"""Java's Avro, out of PySpark's wheel: its verdicts, and what its readers make of bytes."""

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import py4j.java_gateway  # type: ignore[import-untyped]

from folkmoot.console.running.java import find_java

JARS = ("avro-1", "jackson-core-2", "jackson-databind", "jackson-annotations", "slf4j-api", "py4j")


class Java:
    """Avro's Java classes, in a JVM of their own."""

    def __init__(self, jvm: Any) -> None:
        self._avro = jvm.org.apache.avro
        self._streams = jvm.java.io
        self._parsed: dict[str, Any] = {}

    def schema(self, text: str) -> Any:
        if text not in self._parsed:
            self._parsed.clear() if len(self._parsed) > 10 else None
            self._parsed[text] = self._avro.Schema.Parser().parse(text)
        return self._parsed[text]

    def compatible(self, reader: str, writer: str) -> bool:
        """Java's verdict. Raises ValueError with Java's error."""
        check = self._avro.SchemaCompatibility.checkReaderWriterCompatibility
        try:
            return str(check(self.schema(reader), self.schema(writer)).getType()) == "COMPATIBLE"
        except py4j.java_gateway.Py4JJavaError as error:
            raise ValueError(str(error.java_exception)) from None

    def written(self, text: str) -> str:
        """A schema as Java writes it."""
        return str(self.schema(text).toString())

    def reader(self, writer: str, reader: str) -> Any:
        return self._avro.generic.GenericDatumReader(self.schema(writer), self.schema(reader))

    def read(self, datum_reader: Any, reader: str, body: bytes) -> bytes:
        """What Java's reader makes of bytes, written again with the reader's schema.

        Raises ValueError with Java's error.
        """
        try:
            decoders = self._avro.io.DecoderFactory.get()
            value = datum_reader.read(None, decoders.binaryDecoder(body, None))
            out = self._streams.ByteArrayOutputStream()
            encoder = self._avro.io.EncoderFactory.get().directBinaryEncoder(out, None)
            self._avro.generic.GenericDatumWriter(self.schema(reader)).write(value, encoder)
            return bytes(out.toByteArray())
        except py4j.java_gateway.Py4JJavaError as error:
            raise ValueError(str(error.java_exception)) from None


@contextmanager
def java() -> Iterator[Java]:
    spark = importlib.util.find_spec("pyspark")  # to import it would take a third of a second
    assert spark is not None
    assert spark.origin is not None
    jars = Path(spark.origin).parent / "jars"
    paths = [str(path) for name in JARS for path in sorted(jars.glob(f"{name}*.jar"))]
    (gateway_jar,) = jars.glob("py4j-*.jar")
    port, token, process = py4j.java_gateway.launch_gateway(
        classpath=":".join(paths),
        jarpath=str(gateway_jar),
        java_path=str(find_java().executable),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = py4j.java_gateway.JavaGateway(
        gateway_parameters=py4j.java_gateway.GatewayParameters(port=port, auth_token=token)
    )
    try:
        yield Java(gateway.jvm)
    finally:
        gateway.shutdown()
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
