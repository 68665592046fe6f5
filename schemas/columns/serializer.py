"""Arrow tables to columns of Avro values, in Confluent's wire format."""

from typing import Any, Final

from folkmoot.protocol import speedups
from folkmoot.protocol.errors import BatchTooLarge, SerializationError
from folkmoot.schemas.avro.identity import Schema, canonical
from folkmoot.schemas.columns import interpreter
from folkmoot.schemas.columns.binding import Binding
from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.columns.layout import Layout, Parsed
from folkmoot.schemas.columns.program import SAID, Fault
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.wire import FRAME, MAGIC

_compiled = speedups.compiled("folkmoot.schemas.columns._speedups")
_Encoder = (_compiled or interpreter).Encoder


class ColumnSerializer:
    """Rows of Arrow tables to values of one schema, which is registered at the first of them.

    A table has a column for every field of the record, in any order; it may leave out those with a
    default, and has no others. For a schema that is no record it has one, `value`. May be called from
    any thread.
    """

    writes_schema_id: Final = True

    def __init__(self, registry: SchemaRegistry, subject: str, schema: Schema) -> None:
        """Raises InvalidSchema, also for a schema that contains itself."""
        self.subject = subject
        self._registry = registry
        self._text = canonical(schema)
        self._layout = Layout(Parsed(self._text))
        self.arrow_schema: pa.Schema = self._layout.schema
        self._id: int | None = None

    @property
    def schema_id(self) -> int:
        """The id that values are written with. Raises as `SchemaRegistry.register`."""
        if self._id is None:
            self._id = self._registry.register(self.subject, self._text).id
        return self._id

    def __call__(self, rows: "pa.Table | pa.RecordBatch | pa.StructArray") -> Any:
        """The values, as an array of binary; of a table, chunked as it is.

        Raises SerializationError that names the row or column that does not fit, BatchTooLarge where
        values of a chunk have more than 2 GiB, and what registering raises.
        """
        if not isinstance(rows, pa.Table):
            return self._encoded(rows)
        chunks, begun = [], 0
        for batch in rows.to_batches():
            chunks.append(self._encoded(batch, begun))
            begun += len(batch)
        return pa.chunked_array(chunks, pa.binary())

    def _encoded(self, rows: Any, begun: int = 0) -> Any:
        """`begun`: rows before the first one, for what an error says."""
        frame = FRAME.pack(MAGIC, self.schema_id)
        array: Any = rows.to_struct_array() if isinstance(rows, pa.RecordBatch) else rows
        if not self._layout.is_record:
            if [field.name for field in array.type] != ["value"]:
                raise SerializationError("the schema is no record: give one column, value")
            array = array.field(0)
        bound = Binding(self._layout, array)
        encoder = _Encoder(bound.sources)
        encoder.load(bound.nodes)
        try:
            offsets, data, failed = encoder.run(bound.root, len(array), frame)
        except OverflowError as error:
            raise BatchTooLarge(f"{error}; encode fewer rows at a time") from None
        if failed is not None:
            row, node, fault = failed
            said = f"row {begun + row}: {bound.nodes[node].where or 'value'}: {SAID[Fault(fault)]}"
            raise SerializationError(f"{said} (schema {self.schema_id} of {self.subject})")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(array), buffers, 0)
