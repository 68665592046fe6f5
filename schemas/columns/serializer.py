"""Arrow tables to columns of Avro values, in Confluent's wire format."""

from typing import Any, Final

from folkmoot.protocol.errors import BatchTooLarge, SerializationError
from folkmoot.schemas.avro.identity import Schema, canonical
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.binding import Binding
from folkmoot.schemas.columns.extra import _speedups, pa
from folkmoot.schemas.columns.layout import Layout
from folkmoot.schemas.columns.program import MESSAGES, Fault
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import MAX_PREPARED, AvroSerializer
from folkmoot.schemas.values.wire import FRAME, MAGIC


class ColumnEncoder:
    """Rows of Arrow tables to values of a schema whose id is known.

    A table has a column for every field of the record, in any order; it may leave out those with a
    default, and has no others. For a schema that is no record it has one, `value`. Columns are cast
    where no value changes. May be called from any thread.
    """

    def __init__(self, schema: Schema, schema_id: int) -> None:
        """Raises InvalidSchema, also for a schema that contains itself."""
        self.schema_id = schema_id
        self._layout = Layout(ParsedSchema(canonical(schema, strict=False)))
        self.arrow_schema: pa.Schema = self._layout.schema

    def __call__(self, rows: "pa.Table | pa.RecordBatch | pa.StructArray") -> Any:
        """The values, as an array of binary; of a table, chunked as it is.

        Raises SerializationError that names the row or column that does not fit, BatchTooLarge where
        the values of a chunk have more than 2 GiB.
        """
        if not isinstance(rows, pa.Table):
            return self._encode(rows, 0)
        chunks, first_row = [], 0
        for batch in rows.to_batches():
            chunks.append(self._encode(batch, first_row))
            first_row += len(batch)
        return pa.chunked_array(chunks, pa.binary())

    def _encode(self, rows: Any, first_row: int) -> Any:
        """`first_row`: rows before the first one, for what an error says."""
        array = rows.to_struct_array() if isinstance(rows, pa.RecordBatch) else rows
        if not isinstance(array, pa.StructArray):
            raise TypeError(f"rows must be an Arrow table, not {type(rows).__name__}")
        if not self._layout.is_record:
            if [field.name for field in array.type] != ["value"]:
                raise SerializationError("the schema is no record: give one column, value")
            array = array.field(0)
        binding = Binding(self._layout, array, first_row)
        if not len(array):  # Arrow has no buffer of no memory, and ends the process
            return pa.array([], pa.binary())
        encoder = _speedups.Encoder(binding.sources)
        encoder.load(binding.nodes)
        frame = FRAME.pack(MAGIC, self.schema_id)
        try:
            offsets, data, failure = encoder.run(binding.root, len(array), frame)
        except OverflowError as error:
            raise BatchTooLarge(f"{error}; encode fewer rows at a time") from None
        if failure is not None:
            row, node, fault = failure
            where = binding.nodes[node].where or "value"
            raise SerializationError(f"row {first_row + row}: {where}: {MESSAGES[Fault(fault)]}")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(array), buffers, 0)


class ColumnSerializer:
    """Arrow tables to values by a schema that a registry knows, for `send_batch(…, serializer=…)`.

    `options` are those of `AvroSerializer`: which subject, which version, whether to register. An
    AvroSerializer in place of the registry says all that itself. May be called from any thread.
    """

    writes_schema_id: Final = True

    def __init__(
        self,
        registry: SchemaRegistry | AvroSerializer[Any],
        schema: Schema | None = None,
        **options: Any,
    ) -> None:
        """Raises ConfigError."""
        if not isinstance(registry, AvroSerializer):
            registry = AvroSerializer[Any](registry, schema, **options)
        self._values = registry
        self._encoders: dict[str, ColumnEncoder] = {}

    def serialize(self, topic: str, rows: "pa.Table | pa.RecordBatch | pa.StructArray", /) -> Any:
        """As `ColumnEncoder` has it; with the first rows of a topic also what the registry raises."""
        encoder = self._encoders.get(topic)
        if encoder is None:
            number = self._values.prepare(topic)
            values = self._values
            text = values.registry.resolved(number, subject=values.subject)
            encoder = ColumnEncoder(text, number)
            while len(self._encoders) >= MAX_PREPARED:
                self._encoders.pop(next(iter(self._encoders)), None)
            self._encoders[topic] = encoder
        return encoder(rows)
