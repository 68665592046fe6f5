# cython: language_level=3, wraparound=False, boundscheck=False, cdivision=True
"""Columns of Avro values read and written in C. Columns need it; single values do not.

Each length is compared with the remaining bytes before it is used. So no byte outside of the row is read,
and no value is kept that does not fit.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from folkmoot.schemas.columns import program
from folkmoot.schemas.values import encoding

cdef enum:  # program.Op
    NULL_, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, FIXED, ENUM, RECORD, UNION, ARRAY, CONSTANT, FAIL
cdef enum:  # program.Kind
    K_GROUP, K_BOOLEAN, K_INT32, K_INT64, K_FLOAT, K_DOUBLE
    K_BINARY, K_TEXT, K_UUID, K_FIXED, K_DECIMAL, K_LIST
cdef enum:  # program.Fault
    E_FRAME = 1, E_SCHEMA, E_CUT, E_LEFT_OVER, E_VARINT, E_RANGE, E_BOOLEAN, E_BRANCH, E_SYMBOL
    E_TEXT, E_UUID, E_DECIMAL, E_LENGTH, E_EMPTY_ITEMS, E_DEPTH, E_FAIL, E_MISSING, E_SIZE
    E_MEMORY = 100

cdef int MAX_DEPTH = program.MAX_DEPTH
cdef int64_t MAX_EMPTY_ITEMS = encoding.MAX_EMPTY_ITEMS
cdef int64_t MOST = program.MOST
cdef int64_t MAX_LONG = 2 ** 63 - 1
cdef int64_t MIN_LONG = -(2 ** 63 - 1)

cdef struct Node:
    int op, column
    int64_t size, data_size
    int32_t count
    int32_t *children
    const uint8_t *data

cdef struct Column:
    int kind, level
    int64_t size, width
    uint64_t most_high, most_low  # more than any decimal of that many digits
    uint8_t *valid
    char *values
    const uint8_t **starts
    int32_t *lengths

cdef struct Level:
    int64_t count, capacity, before


cdef class Memory:
    """Bytes that C made, as a buffer."""

    cdef char *_data
    cdef Py_ssize_t _size

    def __dealloc__(self):
        free(self._data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._data, self._size, 0, flags)


cdef Memory memory_of(void *data, Py_ssize_t size):
    """Takes the bytes over."""
    memory = Memory()
    memory._data, memory._size = <char *> data, size
    return memory


cdef void *allocated(size_t size) except NULL:
    found = calloc(size or 1, 1)
    if found == NULL:
        raise MemoryError(f"no memory for {size} bytes of a column")
    return found


cdef class Program:
    """Nodes as C has them. They are kept by who makes this: their bytes are not copied."""

    cdef Node *nodes
    cdef int32_t loaded
    cdef int32_t failed  # the node at which the last row failed
    cdef list _referenced

    def __cinit__(self, *_):
        self._referenced = []

    def __dealloc__(self):
        for at in range(self.loaded):
            free(self.nodes[at].children)
        free(self.nodes)

    def load(self, list nodes):
        """The nodes behind those that were loaded before."""
        cdef Node *into
        grown = realloc(self.nodes, (len(nodes) + 1) * sizeof(Node))
        if grown == NULL:
            raise MemoryError("no memory for a program")
        self.nodes = <Node *> grown
        while self.loaded < len(nodes):
            node = nodes[self.loaded]
            into = &self.nodes[self.loaded]
            data, children = node.data, node.children
            self._referenced.append(data)
            into.op, into.column, into.size = node.op, node.column, node.size
            into.data, into.data_size = <const uint8_t *> PyBytes_AS_STRING(data), len(data)
            into.count = len(children)
            into.children = <int32_t *> allocated(len(children) * sizeof(int32_t))
            self.loaded += 1
            for index in range(len(children)):
                into.children[index] = children[index]

    cdef inline int fail(self, int32_t at, int fault) noexcept:
        self.failed = at
        return fault


# -- reading ------------------------------------------------------------------------------------------


cdef class Decoder(Program):
    """Reads rows into columns; `take` hands them out."""

    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Column *columns
    cdef int column_count
    cdef Level *levels
    cdef int level_count
    cdef int64_t rows

    def __cinit__(self, list columns, int levels, int64_t rows):
        cdef Column *column
        cdef int at
        self.rows = rows
        self.levels = <Level *> allocated(levels * sizeof(Level))
        self.level_count = levels
        self.levels[0].capacity = self.levels[0].count = rows
        self.columns = <Column *> allocated(len(columns) * sizeof(Column))
        for at, definition in enumerate(columns):
            column = &self.columns[at]
            column.kind, column.level, column.size = definition.kind, definition.level, definition.size
            column.width = (
                definition.size if definition.kind == K_FIXED else program.WIDTHS.get(definition.kind, 0)
            )
            if column.kind == K_DECIMAL:
                most = 10 ** definition.size
                column.most_high, column.most_low = most >> 64, most & 0xFFFFFFFFFFFFFFFF
            self.column_count = at + 1
            if self.resized(column, 0, rows if definition.level == 0 else 0):
                raise MemoryError(f"no memory for {rows} rows")

    def __dealloc__(self):
        cdef int at
        for at in range(self.column_count):
            free(self.columns[at].valid)
            free(self.columns[at].values)
            free(self.columns[at].starts)
            free(self.columns[at].lengths)
        free(self.columns)
        free(self.levels)

    cdef int resized(self, Column *column, int64_t before, int64_t after) noexcept:
        """Room for `after` slots, zeros from `before` on."""
        if self.grown(<void **> &column.valid, before, after, 1):
            return E_MEMORY
        if column.kind in (K_BINARY, K_TEXT, K_UUID):
            if self.grown(<void **> &column.starts, before, after, sizeof(void *)):
                return E_MEMORY
        if column.kind in (K_BINARY, K_TEXT, K_UUID, K_LIST):
            return self.grown(<void **> &column.lengths, before, after, sizeof(int32_t))
        return self.grown(<void **> &column.values, before, after, column.width)

    cdef int grown(self, void **memory, int64_t before, int64_t after, int64_t width) noexcept:
        cdef void *found
        if before == 0:
            free(memory[0])
            memory[0] = NULL
            found = calloc(after * width + 1, 1)  # unwritten pages stay in place
        else:
            found = realloc(memory[0], after * width + 1)
        if found == NULL:
            return E_MEMORY
        memory[0] = found
        memset(<char *> found + before * width, 0, (after - before) * width if before else 0)
        return 0

    cdef int more(self, Level *level, int number) noexcept:
        """Room for another slot of a level within arrays."""
        cdef int64_t after = max(64, level.capacity * 2)
        cdef int at
        if level.capacity >= MOST:
            return E_MEMORY
        for at in range(self.column_count):
            if self.columns[at].level == number:
                if self.resized(&self.columns[at], level.capacity, after):
                    return E_MEMORY
        level.capacity = after
        return 0

    cdef void forget(self, int64_t row) noexcept:
        """Undo what was read of a row."""
        cdef int at
        cdef int64_t start, count
        cdef Column *column
        for at in range(self.column_count):
            column = &self.columns[at]
            start, count = row, 1
            if column.level:
                start = self.levels[column.level].before
                count = self.levels[column.level].count - start
            memset(column.valid + start, 0, count)
            if column.lengths != NULL:
                memset(column.lengths + start, 0, count * sizeof(int32_t))
        for at in range(1, self.level_count):
            self.levels[at].count = self.levels[at].before

    def run(self, offsets, data, nulls, root_of):
        """Read all rows; `root_of` gives the first node for a schema's id or GUID, or -1.

        → the bad ones: row, id, GUID or None, node, fault. Raises MemoryError, and what `root_of` raises.
        """
        cdef Py_buffer starts, cells, missing
        PyObject_GetBuffer(offsets, &starts, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(data, &cells, PyBUF_SIMPLE)
            try:
                if nulls is None:
                    return self.read_rows(&starts, &cells, NULL, root_of)
                PyObject_GetBuffer(nulls, &missing, PyBUF_SIMPLE)
                try:
                    return self.read_rows(&starts, &cells, <const uint8_t *> missing.buf, root_of)
                finally:
                    PyBuffer_Release(&missing)
            finally:
                PyBuffer_Release(&cells)
        finally:
            PyBuffer_Release(&starts)

    cdef list read_rows(
        self, Py_buffer *starts, Py_buffer *cells, const uint8_t *nulls, object root_of
    ):
        cdef const int64_t *offsets = <const int64_t *> starts.buf
        cdef const uint8_t *data = <const uint8_t *> cells.buf
        cdef int64_t row, last = -1, schema = -1
        cdef int32_t root = -1
        cdef int level, fault, frame
        cdef object named = None
        bad = []
        for row in range(self.rows):
            if nulls != NULL and nulls[row]:
                continue
            if not 0 <= offsets[row] <= offsets[row + 1] <= cells.len:
                raise ValueError(f"cell {row} does not lie within its column")
            self.at, self.end = data + offsets[row], data + offsets[row + 1]
            frame = 17 if self.at < self.end and self.at[0] == 1 else 5
            if self.end - self.at < frame or self.at[0] > 1:
                bad.append((row, None, -1, E_FRAME))
                continue
            if frame == 17:
                guid, last = self.at[1:17], -1
                if guid != named:
                    root, named = root_of(guid), guid
            else:
                schema = (
                    (<int64_t> self.at[1] << 24)
                    | (self.at[2] << 16)
                    | (self.at[3] << 8)
                    | self.at[4]
                )
                if schema != last:
                    root, last, named = root_of(schema), schema, schema
            self.at += frame
            if root < 0:
                bad.append((row, named, -1, E_SCHEMA))
                continue
            for level in range(1, self.level_count):
                self.levels[level].before = self.levels[level].count
            fault = self.read(root, row, 0)
            if not fault and self.at != self.end:
                fault = self.fail(root, E_LEFT_OVER)
            if fault == E_MEMORY:
                raise MemoryError(f"no memory for the columns of {self.rows} rows")
            if fault:
                self.forget(row)
                bad.append((row, named, self.failed, fault))
        return bad

    cdef inline int varint(self, int64_t *into) noexcept:
        cdef uint64_t byte, number = 0
        cdef int shift = 0
        while self.at < self.end:
            byte = self.at[0]
            self.at += 1
            if shift == 63 and byte > 1:
                return E_VARINT
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                into[0] = <int64_t> ((number >> 1) ^ (0 - (number & 1)))
                return 0
            shift += 7
            if shift > 63:
                return E_VARINT
        return E_CUT

    cdef int read(self, int32_t at, int64_t slot, int depth) noexcept:
        """One value into its slot. → a fault, or 0."""
        cdef Node *node = &self.nodes[at]
        cdef Column *column = &self.columns[node.column] if node.column >= 0 else NULL
        cdef int64_t number
        cdef int fault, child
        cdef const uint8_t *saved_at
        cdef const uint8_t *saved_end
        if node.op == INT or node.op == LONG:
            fault = self.varint(&number)
            if fault:
                return self.fail(at, fault)
            if node.op == INT and number != <int32_t> number:
                return self.fail(at, E_RANGE)
            if column == NULL:
                return 0
            if node.size > 1:
                if not MIN_LONG // node.size <= number <= MAX_LONG // node.size:
                    return self.fail(at, E_RANGE)
                number *= node.size
            return self.integer(at, column, slot, number)
        if node.op == BYTES:
            fault = self.varint(&number)
            if not fault and number < 0:
                fault = E_LENGTH
            if not fault and number > self.end - self.at:
                fault = E_CUT
            if fault:
                return self.fail(at, fault)
            return self.run_of_bytes(at, column, slot, number)
        if node.op == RECORD:
            if depth > MAX_DEPTH:
                return self.fail(at, E_DEPTH)
            if column != NULL:
                column.valid[slot] = 1
            for child in range(node.count):
                fault = self.read(node.children[child], slot, depth + 1)
                if fault:
                    return fault
            return 0
        if node.op == UNION:
            fault = self.varint(&number)
            if not fault and not 0 <= number < node.count:
                fault = E_BRANCH
            return self.fail(at, fault) if fault else self.read(node.children[number], slot, depth)
        if node.op == FIXED:
            if self.end - self.at < node.size:
                return self.fail(at, E_CUT)
            return self.run_of_bytes(at, column, slot, node.size)
        if node.op == ARRAY:
            return self.items(at, column, slot, depth)
        if node.op == CONSTANT:
            saved_at, saved_end = self.at, self.end
            self.at, self.end = node.data, node.data + node.data_size
            fault = self.read(node.children[0], slot, depth)
            self.at, self.end = saved_at, saved_end
            return fault
        if node.op == NULL_:
            return 0
        return self.fail(at, E_FAIL) if node.op == FAIL else self.leaf(at, column, slot)

    cdef int leaf(self, int32_t at, Column *column, int64_t slot) noexcept:
        """A boolean, a float, a double or an enum."""
        cdef Node *node = &self.nodes[at]
        cdef int64_t number
        cdef double real
        cdef float single
        cdef int fault
        if node.op == ENUM:
            fault = self.varint(&number)
            if not fault and not 0 <= number < node.count:
                fault = E_SYMBOL
            if not fault and node.children[number] < 0:
                fault = E_SYMBOL
            if fault:
                return self.fail(at, fault)
            return 0 if column == NULL else self.integer(at, column, slot, node.children[number])
        if self.end - self.at < (1 if node.op == BOOLEAN else 4 if node.op == FLOAT else 8):
            return self.fail(at, E_CUT)
        if node.op == BOOLEAN:
            if self.at[0] > 1:
                return self.fail(at, E_BOOLEAN)
            if column != NULL:
                column.valid[slot], column.values[slot] = 1, self.at[0]
            self.at += 1
            return 0
        if node.op == FLOAT:
            memcpy(&single, self.at, 4)
            self.at += 4
            real = single
        else:
            memcpy(&real, self.at, 8)
            self.at += 8
        if column != NULL:
            column.valid[slot] = 1
            if column.kind == K_FLOAT:
                (<float *> column.values)[slot] = <float> real
            else:
                (<double *> column.values)[slot] = real
        return 0

    cdef inline int integer(self, int32_t at, Column *column, int64_t slot, int64_t number) noexcept:
        column.valid[slot] = 1
        if column.kind == K_INT32:
            (<int32_t *> column.values)[slot] = <int32_t> number
        elif column.kind == K_INT64:
            (<int64_t *> column.values)[slot] = number
        elif column.kind == K_FLOAT:
            (<float *> column.values)[slot] = <float> number
            return 0
        else:
            (<double *> column.values)[slot] = <double> number
            return 0
        return self.fail(at, E_RANGE) if column.size and not 0 <= number < column.size else 0

    cdef inline int run_of_bytes(
        self, int32_t at, Column *column, int64_t slot, int64_t size
    ) noexcept:
        """`size` bytes that exist, as a string, bytes, a fixed or a decimal."""
        cdef const uint8_t *start = self.at
        self.at += size
        if column == NULL:
            return 0
        if column.kind == K_FIXED:
            memcpy(column.values + slot * column.width, start, size)
        elif column.kind == K_DECIMAL:
            if not decimal(column, slot, start, size):
                return self.fail(at, E_DECIMAL)
        else:
            if column.kind == K_TEXT and not is_text(start, size):
                return self.fail(at, E_TEXT)
            if column.kind == K_UUID and not is_uuid(start, size):
                return self.fail(at, E_UUID)
            column.starts[slot], column.lengths[slot] = start, <int32_t> size
        column.valid[slot] = 1
        return 0

    cdef int items(self, int32_t at, Column *column, int64_t slot, int depth) noexcept:
        cdef Node *node = &self.nodes[at]
        cdef Level *level = NULL if column == NULL else &self.levels[column.size]
        cdef int64_t first_item = 0 if level == NULL else level.count
        cdef int64_t count, size, inner, left = MAX_EMPTY_ITEMS
        cdef int fault
        if depth > MAX_DEPTH:
            return self.fail(at, E_DEPTH)
        while True:
            fault = self.varint(&count)
            if not fault and count < 0:
                count = 0 - count
                fault = E_LENGTH if count < 0 else self.varint(&size)
            if not fault:
                if node.size:
                    fault = E_EMPTY_ITEMS if count > left else 0
                    left -= count
                elif count > self.end - self.at:
                    fault = E_CUT
            if fault:
                return self.fail(at, fault)
            if count == 0:
                break
            for inner in range(count):
                if level != NULL:
                    if level.count == level.capacity and self.more(level, column.size):
                        return E_MEMORY
                    level.count += 1
                fault = self.read(
                    node.children[0], 0 if level == NULL else level.count - 1, depth + 1
                )
                if fault:
                    return fault
        if column != NULL:
            column.valid[slot] = 1
            column.lengths[slot] = <int32_t> (level.count - first_item)
        return 0

    # -- what was read ------------------------------------------------------------------------------

    def count(self, int level):
        """The slots of a level."""
        return self.levels[level].count

    def take(self, int number):
        """A column's buffers: one byte for each slot that says whether there is a value; offsets, of
        binary and lists; values. Raises OverflowError for more than 2 GiB."""
        cdef Column *column = &self.columns[number]
        cdef int64_t count = self.levels[column.level].count
        valid, column.valid = memory_of(column.valid, count), NULL
        if column.lengths == NULL:
            values = memory_of(column.values, count * column.width)
            column.values = NULL
            return valid, None, values
        offsets = self.offsets(column, count)
        return valid, offsets, None if column.kind == K_LIST else self.joined(column, count)

    cdef Memory offsets(self, Column *column, int64_t count):
        cdef int64_t slot, total = 0
        cdef int32_t *into = <int32_t *> allocated((count + 1) * sizeof(int32_t))
        memory = memory_of(into, (count + 1) * sizeof(int32_t))
        for slot in range(count):
            total += column.lengths[slot]
            if total > MOST:
                raise OverflowError("a column would have more than 2 GiB")
            into[slot + 1] = <int32_t> total
        return memory

    cdef Memory joined(self, Column *column, int64_t count):
        cdef int64_t slot, total = 0
        cdef char *into
        for slot in range(count):
            total += column.lengths[slot]
        into = <char *> malloc(total + 1)
        if into == NULL:
            raise MemoryError(f"no memory for {total} bytes of a column")
        memory = memory_of(into, total)
        for slot in range(count):
            memcpy(into, column.starts[slot], column.lengths[slot])
            into += column.lengths[slot]
        return memory


cdef bint is_text(const uint8_t *start, int64_t size) noexcept:
    cdef int64_t at = 0
    cdef uint64_t eight
    while at + 8 <= size:
        memcpy(&eight, start + at, 8)
        if eight & <uint64_t> 0x8080808080808080:
            break
        at += 8
    else:
        while at < size and start[at] < 0x80:
            at += 1
        if at == size:
            return True
    try:
        PyUnicode_DecodeUTF8(<const char *> start + at, size - at, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint is_uuid(const uint8_t *start, int64_t size) noexcept:
    cdef int at
    if size != 36:
        return False
    for at in range(36):
        if at in (8, 13, 18, 23):
            if start[at] != 45:
                return False
        elif not (48 <= start[at] <= 57 or 65 <= start[at] <= 70 or 97 <= start[at] <= 102):
            return False
    return True


cdef bint decimal(Column *column, int64_t slot, const uint8_t *start, int64_t size) noexcept:
    """The big-endian number as Arrow's little-endian one. → whether it has not too many digits."""
    cdef uint8_t fill = 0xFF if size and start[0] & 0x80 else 0
    cdef uint8_t *into = <uint8_t *> column.values + slot * 16
    cdef uint64_t low, high
    cdef int64_t at
    for at in range(size - 16):
        if start[at] != fill:
            return False
    for at in range(16):
        into[at] = start[size - 1 - at] if at < size else fill
    if size > 16 and (into[15] ^ fill) & 0x80:
        return False
    memcpy(&low, into, 8)
    memcpy(&high, into + 8, 8)
    if fill:
        low = 0 - low
        high = ~high + (low == 0)
    return high < column.most_high or (high == column.most_high and low < column.most_low)


# -- writing ------------------------------------------------------------------------------------------

cdef struct Source:
    int kind
    int64_t offset, width
    const uint8_t *valid
    const uint8_t *values
    const int32_t *offsets


cdef class Encoder(Program):
    """Writes rows out of columns. The buffers of `sources` are trusted."""

    cdef Source *sources
    cdef char *out
    cdef int64_t used, capacity

    def __cinit__(self, list sources):
        cdef Source *source
        self.sources = <Source *> allocated(len(sources) * sizeof(Source))
        for at, definition in enumerate(sources):
            self._referenced.append(definition)
            source = &self.sources[at]
            source.kind, source.offset, source.width = definition.kind, definition.offset, definition.size
            source.valid = address_of(definition.valid)
            source.values = address_of(definition.values)
            source.offsets = <const int32_t *> address_of(definition.offsets)
            if source.offsets != NULL:
                source.offsets += source.offset

    def __dealloc__(self):
        free(self.sources)
        free(self.out)

    def run(self, int32_t root, int64_t rows, bytes frame):
        """→ offsets and bytes of the rows' values, each with `frame` in front; then, if not all could
        be written, row, node and fault of the first that could not. Raises MemoryError, OverflowError."""
        cdef int64_t row
        cdef int fault = 0
        cdef int64_t size = len(frame)
        cdef int32_t *offsets = <int32_t *> allocated((rows + 1) * sizeof(int32_t))
        starts = memory_of(offsets, (rows + 1) * sizeof(int32_t))
        for row in range(rows):
            fault = self.put(PyBytes_AS_STRING(frame), size) or self.write(root, row)
            if fault == E_MEMORY:
                raise MemoryError(f"no memory for {rows} values")
            if fault:
                return starts, memory_of(NULL, 0), (row, self.failed, fault)
            if self.used > MOST:
                raise OverflowError(f"{rows} values have more than 2 GiB")
            offsets[row + 1] = <int32_t> self.used
        data, self.out = memory_of(self.out, self.used), NULL
        return starts, data, None

    cdef inline int need(self, int64_t size) noexcept:
        cdef void *grown
        if self.capacity - self.used < size:
            grown = realloc(self.out, (self.used + size) * 2 + 4096)
            if grown == NULL:
                return E_MEMORY
            self.out = <char *> grown
            self.capacity = (self.used + size) * 2 + 4096
        return 0

    cdef inline int put(self, const void *data, int64_t size) noexcept:
        if self.need(size):
            return E_MEMORY
        memcpy(self.out + self.used, data, size)
        self.used += size
        return 0

    cdef inline int varint(self, int64_t number) noexcept:
        cdef uint64_t left = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
        if self.need(10):
            return E_MEMORY
        while left > 0x7F:
            self.out[self.used] = <char> (left & 0x7F | 0x80)
            self.used += 1
            left >>= 7
        self.out[self.used] = <char> left
        self.used += 1
        return 0

    cdef inline bint is_there(self, Source *source, int64_t slot) noexcept:
        slot += source.offset
        return source.valid == NULL or source.valid[slot >> 3] >> (slot & 7) & 1

    cdef int write(self, int32_t at, int64_t slot) noexcept:
        """One value out of its slot. → a fault, or 0."""
        cdef Node *node = &self.nodes[at]
        cdef Source *source = &self.sources[node.column] if node.column >= 0 else NULL
        cdef int64_t number
        cdef int fault, child
        if node.op == UNION:
            return self.union(at, source, slot)
        if node.op == CONSTANT:
            return self.put(node.data, node.data_size)
        if node.op == NULL_:
            return 0
        if source != NULL and not self.is_there(source, slot):
            return self.fail(at, E_MISSING)
        if node.op == RECORD:
            for child in range(node.count):
                fault = self.write(node.children[child], slot)
                if fault:
                    return fault
            return 0
        if node.op == ARRAY:
            return self.items(node, source, slot)
        if node.op == BYTES and source.kind == K_BINARY:
            number = source.offsets[slot + 1] - source.offsets[slot]
            return self.varint(number) or self.put(source.values + source.offsets[slot], number)
        slot += source.offset
        if source.kind == K_DECIMAL:
            return self.decimal(at, source.values + slot * 16)
        if node.op == INT or node.op == LONG or node.op == ENUM:
            if source.kind == K_INT32:
                number = (<const int32_t *> source.values)[slot]
            else:
                number = (<const int64_t *> source.values)[slot]
            if node.size and not 0 <= number < node.size:
                return self.fail(at, E_RANGE)
            return self.varint(number)
        if node.op == BOOLEAN:
            child = source.values[slot >> 3] >> (slot & 7) & 1
            return self.put(b"\1" if child else b"\0", 1)
        return self.put(source.values + slot * source.width, source.width)

    cdef int union(self, int32_t at, Source *source, int64_t slot) noexcept:
        """The first branch that has a value; null, if none has and null is one."""
        cdef Node *node = &self.nodes[at]
        cdef Node *branch
        cdef int child, otherwise = -1
        cdef bint none = source != NULL and not self.is_there(source, slot)
        for child in range(node.count):
            branch = &self.nodes[node.children[child]]
            if branch.op == NULL_:
                otherwise = child
            elif branch.op != FAIL and not none:
                if self.is_there(&self.sources[branch.column], slot):
                    return self.varint(child) or self.write(node.children[child], slot)
        return self.fail(at, E_MISSING) if otherwise < 0 else self.varint(otherwise)

    cdef int items(self, Node *node, Source *source, int64_t slot) noexcept:
        cdef int64_t inner, start = source.offsets[slot], end = source.offsets[slot + 1]
        cdef int fault
        if start < end:
            if self.varint(end - start):
                return E_MEMORY
            for inner in range(start, end):
                fault = self.write(node.children[0], inner)
                if fault:
                    return fault
        return self.varint(0)

    cdef int decimal(self, int32_t at, const uint8_t *value) noexcept:
        """Arrow's little-endian number as the shortest big-endian one, or of the size of the fixed."""
        cdef Node *node = &self.nodes[at]
        cdef int64_t size = 16, index
        cdef uint8_t fill = 0xFF if value[15] & 0x80 else 0
        cdef uint8_t byte
        while size > 1 and value[size - 1] == fill and (value[size - 2] ^ fill) < 0x80:
            size -= 1
        if node.op == FIXED:
            if size > node.size:
                return self.fail(at, E_SIZE)
            size = node.size
        elif self.varint(size):
            return E_MEMORY
        for index in range(size - 1, -1, -1):
            byte = value[index] if index < 16 else fill
            if self.put(&byte, 1):
                return E_MEMORY
        return 0


cdef const uint8_t *address_of(object buffer) except? NULL:
    """The address of an Arrow buffer; NULL for none."""
    return NULL if buffer is None else <const uint8_t *> <uintptr_t> buffer.address
