# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=True, binding=False
"""`batch_builder.py` in C: records are encoded into their batch's columns as they are appended.

There is no lock: changes that must be seen as one happen between two calls into Python, and
nothing else runs then. So, from the last look at a builder until the record is in it, this file never
runs Python code and makes no object that the garbage collector tracks (which may run finalisers, and
those anything). Objects are made before, and then everything is looked at again. Every column gets
room before a byte is written to any: without memory, nothing is taken.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_Append, PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyCallable_Check, PyObject
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import sys

import numpy as np

from folkmoot.producers.columns import (
    EARLY,
    MAX_RECORD_TIMESTAMP,
    RECORD_OVERHEAD_BYTES,
    as_bytes,
    as_callback,
    as_headers,
    as_int,
    as_timestamp,
    encode,
    encode_headers,
    no_partition,
    too_large,
)
from folkmoot.producers.batch_builder import BODY_SPARE_BYTES, MOST_PARTITIONS, ROWS_AT_ONCE
from folkmoot.producers.futures import failure_of, future_of, outcome_at, outcome_of, wait
from folkmoot.producers.partitioner import by_function, draw
from folkmoot.protocol.batch_header import (
    MAX_BODY_BYTES,
    MAX_RECORDS,
    MAX_SCHEMA_ID,
    MIXED,
    NO_SCHEMA,
    NO_VALUES,
    UnsealedBatch,
)
from folkmoot.protocol.records import RecordMetadata, TopicPartition

from random import Random

if sys.byteorder != "little":
    raise ImportError("numbers within a batch's columns are little-endian, as they are written here")

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void*) noexcept

cdef extern from "<time.h>":
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int CLOCK_REALTIME

cdef enum:
    OVERHEAD = 32
    AHEAD = 12  # rows, whose cells are fetched into the cache while those before are worked on
    STEP = 4  # from a row's length to the next one's: a `Row` is as large as four of them
    KEY_HASH = 0
    STICKY = 1
    ROUND_ROBIN = 2
    FUNCTION = 3

cdef uint32_t NIL = 0xFFFFFFFFU
cdef Py_ssize_t _MAX_RECORDS = MAX_RECORDS
cdef Py_ssize_t _LARGEST = MAX_BODY_BYTES - BODY_SPARE_BYTES
cdef Py_ssize_t _MOST_PARTITIONS = MOST_PARTITIONS
cdef Py_ssize_t _ROWS_AT_ONCE = ROWS_AT_ONCE
cdef long long _MAX_TIMESTAMP = MAX_RECORD_TIMESTAMP
cdef long long _EARLY = EARLY
cdef uint32_t _NO_SCHEMA = NO_SCHEMA, _MAX_SCHEMA_ID = MAX_SCHEMA_ID
cdef uint32_t _NO_VALUES = NO_VALUES, _MIXED = MIXED
cdef object _new_tuple = tuple.__new__
cdef object _metadata = RecordMetadata

if RECORD_OVERHEAD_BYTES != OVERHEAD:
    raise ImportError("this module was built for another version of folkmoot")


# -- memory -------------------------------------------------------------------------------------------

cdef enum:
    SMALL = 1 << 17

cdef struct Column:
    char* data
    size_t used
    size_t room


cdef inline int reserve(Column* column, size_t more) except -1:
    """Make room for this many bytes. Raises MemoryError; then nothing has changed."""
    if more <= column.room - column.used:
        return 0
    return grow(column, more)


cdef int grow(Column* column, size_t more) except -1:
    cdef size_t room
    cdef char* data
    if more > <size_t>1 << 40:
        raise MemoryError
    # Copying on the way to a full batch costs as much as appending to it: few steps while it is small.
    room = column.room * (4 if column.room < SMALL else 2)
    room = max(<size_t>256, room, column.used + more)
    data = <char*>PyMem_RawRealloc(column.data, room)
    if data == NULL:
        raise MemoryError
    column.data, column.room = data, room
    return 0


cdef inline void put(Column* column, const void* data, size_t size) noexcept:
    memcpy(column.data + column.used, data, size)
    column.used += size


cdef inline void drop(Column* column) noexcept:
    PyMem_RawFree(column.data)
    column.data = NULL
    column.used = column.room = 0


# -- MessagePack --------------------------------------------------------------------------------------

cdef inline char* big_endian(char* at, uint64_t number, int width) noexcept:
    cdef int shift = 8 * width
    while shift:
        shift -= 8
        at[0] = <char>(number >> shift)
        at += 1
    return at


cdef inline char* put_sized(char* at, size_t size, int code8, int code16, int code32) noexcept:
    """Write the head of a `bin` or an array; `code8` 0: the kind has no head of one byte."""
    if size < 1 << 8 and code8:
        at[0] = <char>code8
        return big_endian(at + 1, size, 1)
    if size < 1 << 16:
        at[0] = <char>code16
        return big_endian(at + 1, size, 2)
    at[0] = <char>code32
    return big_endian(at + 1, size, 4)


cdef inline char* put_array(char* at, size_t count) noexcept:
    if count < 16:
        at[0] = <char>(0x90 | count)
        return at + 1
    return put_sized(at, count, 0, 0xDC, 0xDD)


cdef inline char* put_bin(char* at, const char* data, Py_ssize_t size) noexcept:
    """Write a cell; a negative size is a nil."""
    if size < 0:
        at[0] = <char>0xC0
        return at + 1
    at = put_sized(at, size, 0xC4, 0xC5, 0xC6)
    memcpy(at, data, size)
    return at + size


cdef inline char* put_tag(char* at, int tag) noexcept:
    """Write a column's tag: 0 for one value of all rows, 1 for a list of headers, 2 for packed cells."""
    at[0] = <char>0x92
    at[1] = <char>tag
    return at + 2


cdef inline int is_header(object name, object value) noexcept:
    return PyUnicode_CheckExact(name) and (value is None or PyBytes_CheckExact(value))


cdef bytes encoded_headers(object headers):
    """As `columns.encode_headers`; plain headers without a line of Python."""
    cdef object rows = headers, row
    if type(headers) is dict:
        rows = tuple(headers.items())
    elif PyList_CheckExact(headers):
        rows = tuple(headers)  # a copy that no other thread changes
    if not PyTuple_CheckExact(rows):
        return encode_headers(headers)
    for row in <tuple>rows:
        if not PyTuple_CheckExact(row) or PyTuple_GET_SIZE(row) != 2 or not is_header(row[0], row[1]):
            return encode_headers(headers)
    try:
        return encode(rows) if rows else b""
    except UnicodeEncodeError:
        return encode_headers(headers)  # its error names the header


# -- hashing ------------------------------------------------------------------------------------------

cdef inline uint32_t murmur2(const char* key, Py_ssize_t size) noexcept:
    """Kafka's, as in protocol/murmur2.py."""
    cdef uint32_t m = 0x5BD1E995U, h = 0x9747B28CU ^ <uint32_t>size, k
    cdef const char* end = key + (size & ~<Py_ssize_t>3)
    while key < end:
        memcpy(&k, key, 4)
        k *= m
        k ^= k >> 24
        k *= m
        h = h * m ^ k
        key += 4
    size &= 3
    if size:
        k = <uint8_t>key[0]
        if size > 1:
            k |= <uint32_t><uint8_t>key[1] << 8
        if size > 2:
            k |= <uint32_t><uint8_t>key[2] << 16
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


cdef inline int64_t now() noexcept:
    cdef timespec at
    clock_gettime(CLOCK_REALTIME, &at)
    return <int64_t>at.tv_sec * 1000 + at.tv_nsec // 1000000


# -- a record -----------------------------------------------------------------------------------------

cdef struct Record:
    const char* key
    const char* value
    const char* headers  # encoded
    Py_ssize_t key_size, value_size  # negative: None
    Py_ssize_t headers_size
    Py_ssize_t size  # as it counts
    int64_t stamp
    bint framed  # its value begins with a schema's id
    bint fixed  # its partition was named


cdef inline int weigh(Record* record, Py_ssize_t most) except -1:
    """Set `size`. Raises RecordTooLarge."""
    cdef Py_ssize_t size = max(record.key_size, 0) + max(record.value_size, 0) + record.headers_size
    record.size = OVERHEAD + size
    if size > most:
        raise too_large(size, most)
    return 0


cdef inline uint32_t written_schema(const Record* record) noexcept:
    """As `batch_header.written_schema`, for a value that is no tombstone."""
    cdef const unsigned char* at = <const unsigned char*>record.value
    cdef uint32_t number
    if not record.framed or record.value_size < 5 or at[0]:
        return _NO_SCHEMA
    number = <uint32_t>at[1] << 24 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 8 | at[4]
    return number if number <= _MAX_SCHEMA_ID else _NO_SCHEMA


# -- handles ------------------------------------------------------------------------------------------

@cython.no_gc
@cython.freelist(256)
cdef class Delivery:
    """The outcome of one record, now or later: see `futures.Delivery`.

    The garbage collector does not track it: its batch refers to it only while a callback waits.
    """

    cdef BatchBuilder _builder
    cdef Py_ssize_t _rank
    cdef readonly int64_t timestamp

    def __init__(self):
        raise TypeError("deliveries are made by send")

    def done(self):
        return self._builder.done

    def result(self, timeout=None):
        if not self._builder.done:
            wait(self.done, self._builder, timeout)
        return self._outcome()

    def exception(self, timeout=None):
        if not self._builder.done:
            wait(self.done, self._builder, timeout)
        return self._failure()

    cpdef _outcome(self):
        cdef BatchBuilder builder = self._builder
        topic, partition = builder.topic_partition
        if builder.outcomes is not None:
            partition, offset, error = outcome_at(builder, self._rank)
        else:
            offset = builder.base_offset + self._rank if builder.base_offset >= 0 else -1
            error = builder.error
        if error is not None:
            builder._observe(self._rank, 1)
            raise error
        return _new_tuple(_metadata, (topic, partition, offset, self.timestamp))

    cpdef _failure(self):
        self._builder._observe(self._rank, 1)
        return outcome_at(self._builder, self._rank)[2]

    def add_done_callback(self, call):
        as_callback("call", call)
        if not self._builder.call_when_done(call, self):
            self._builder._observe(self._rank, 1)
            call(self)

    def future(self):
        return future_of(self)

    @property
    def builder(self):
        return self._builder


@cython.no_gc
cdef class AsyncDelivery(Delivery):
    """As `futures.AsyncDelivery`."""

    def __await__(self):
        return outcome_of(self, None).__await__()

    def result(self, timeout=None):
        return outcome_of(self, timeout)

    def exception(self, timeout=None):
        return failure_of(self, timeout)


# -- a batch ------------------------------------------------------------------------------------------

@cython.final
cdef class Body:
    """The bytes of a batch; read through a memoryview."""

    cdef Column block

    def __cinit__(self, size_t size):
        grow(&self.block, size)

    def __dealloc__(self):
        drop(&self.block)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.block.data, self.block.used, 1, flags)


cdef struct Row:
    uint32_t key_size, value_size  # NIL: None
    int64_t stamp


cdef class BatchBuilder:
    """Records of one partition, in order, and their outcome: see `batch_builder.BatchBuilder`.

    Cells lie back to back, and `_rows` has their lengths; headers are encoded, from the first
    record on that has any. Fewer columns are fewer places that a record is written to.
    """

    cdef readonly object topic_partition, owner, error
    cdef readonly Py_ssize_t count, size
    cdef readonly bint closed, done
    cdef readonly int64_t base_offset
    cdef public object outcomes
    cdef list _callbacks  # flat: each callback, and its handle
    cdef bint _announced
    cdef readonly uint32_t schema_id
    cdef Column _keys, _values, _rows, _headers, _switches
    cdef bint _has_headers, _is_fixed
    cdef bytearray _observed
    cdef Py_ssize_t _seen

    def __init__(self, topic_partition, owner, Py_ssize_t count=0):
        if self._callbacks is not None:
            raise TypeError("a batch is made once")
        if count < 0:
            raise ValueError("a batch has no fewer than 0 records")
        self.topic_partition, self.owner = topic_partition, owner
        self.count, self.closed = count, count > 0
        self.base_offset = -1
        self.schema_id = _NO_VALUES
        self._callbacks = []

    def __dealloc__(self):
        self._free()
        drop(&self._switches)

    @cython.final
    cdef void _free(self) noexcept:
        drop(&self._keys)
        drop(&self._values)
        drop(&self._rows)
        drop(&self._headers)

    @cython.final
    cdef inline int _append(self, const Record* record, object call, Delivery delivery) except -1:
        """Add a record, and the callback for its `delivery`, unless that is None. All or nothing."""
        cdef Row row
        cdef uint32_t schema
        cdef Py_ssize_t missing = 0
        if record.key_size > 0:
            reserve(&self._keys, record.key_size)
        if record.value_size > 0:
            reserve(&self._values, record.value_size)
        reserve(&self._rows, sizeof(Row))
        if record.headers_size or self._has_headers:
            missing = 0 if self._has_headers else self.count
            reserve(&self._headers, missing + record.headers_size + 1)
        if record.fixed != self._is_fixed:
            reserve(&self._switches, sizeof(Py_ssize_t))
        if call is not None:
            append_both(self._callbacks, call, delivery)
        # From here on nothing can fail.
        if record.fixed != self._is_fixed:
            self._is_fixed = record.fixed
            put(&self._switches, &self.count, sizeof(Py_ssize_t))
        row.key_size, row.value_size = <uint32_t>record.key_size, <uint32_t>record.value_size
        row.stamp = record.stamp
        put(&self._rows, &row, sizeof(Row))
        if record.key_size > 0:
            put(&self._keys, record.key, record.key_size)
        if record.value_size > 0:
            put(&self._values, record.value, record.value_size)
        if record.headers_size or self._has_headers:
            while missing:
                put(&self._headers, b"\x90", 1)
                missing -= 1
            self._has_headers = True
            if record.headers_size:
                put(&self._headers, record.headers, record.headers_size)
            else:
                put(&self._headers, b"\x90", 1)
        if record.value_size >= 0:
            schema = written_schema(record)
            if schema != self.schema_id:
                if self.schema_id == _NO_VALUES:
                    self.schema_id = schema
                else:
                    self.schema_id = _MIXED if schema and self.schema_id else _NO_SCHEMA
        self.count += 1
        self.size += record.size
        return 0

    @property
    def switches(self):
        cdef Py_ssize_t index
        cdef Py_ssize_t* ranks = <Py_ssize_t*>self._switches.data
        return [ranks[index] for index in range(self._switches.used // sizeof(Py_ssize_t))]

    def close(self):
        self.closed = True

    def body(self):
        self.closed = True
        cdef Py_ssize_t count = self.count, row
        cdef int64_t base, highest
        cdef Body body
        cdef char* start
        cdef char* at
        cdef Row* rows = <Row*>self._rows.data
        if self.done or not count or self._rows.used != <size_t>count * sizeof(Row):
            raise ValueError("a batch without records has no body")
        base = highest = rows[0].stamp
        for row in range(1, count):
            base = min(base, rows[row].stamp)
            highest = max(highest, rows[row].stamp)
        # Two lengths and a stamp for each row; 64 bytes hold the tags and heads of all columns.
        body = Body(self._keys.used + self._values.used + self._headers.used + count * 16 + 64)
        start = body.block.data
        start[0] = <char>0x95
        at = write_cells(start + 1, &self._keys, &rows.key_size, count)
        at = write_cells(at, &self._values, &rows.value_size, count)
        at = write_stamps(at, rows, count, base, highest)
        if self._has_headers:
            at = put_array(put_tag(at, 1), count)
            memcpy(at, self._headers.data, self._headers.used)
            at += self._headers.used
        else:
            at = put_bin(put_tag(at, 0), NULL, -1)
        at = put_bin(put_tag(at, 0), NULL, -1)
        body.block.used = at - start
        parts = [memoryview(body)]
        return UnsealedBatch(parts, 0, count - 1, count, base, highest, self.schema_id)

    def release(self):
        self.closed = True
        self._free()

    def finish(self, base_offset, error):
        cdef int64_t offset = base_offset
        cdef Delivery delivery
        if self.done:
            return ()
        callbacks = self._callbacks
        nothing = []
        self._callbacks = nothing
        self.base_offset, self.error = offset, error
        self.closed = self.done = True
        self._free()
        drop(&self._switches)
        self.owner = None
        if not callbacks:
            return ()
        called = callbacks[1::2]
        if error is not None:
            for delivery in called:
                self._observe(delivery._rank, 1)
        return zip(callbacks[::2], called)

    def call_when_done(self, call, Delivery delivery not None):
        if self.done:
            return False
        append_both(self._callbacks, call, delivery)
        return True

    def observe(self, Py_ssize_t first, Py_ssize_t count=1):
        self._observe(first, count)

    @cython.final
    cdef int _observe(self, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t rank
        cdef int bit
        cdef bytearray observed
        cdef char* bits
        if self.error is None or self._seen == self.count:
            return 0
        if first < 0 or count < 0 or count > self.count - first:
            raise ValueError("a batch does not have these records")
        if self._observed is None:
            made = bytearray((self.count + 7) >> 3)
            if self._observed is None:
                self._observed = made
        observed = self._observed
        bits = observed
        for rank in range(first, first + count):
            bit = 1 << (rank & 7)
            if not bits[rank >> 3] & bit:
                bits[rank >> 3] |= <char>bit
                self._seen += 1
        if self._seen == self.count:
            self._observed = None
        return 0

    @property
    def unobserved(self):
        return 0 if self.error is None else self.count - self._seen


cdef inline int append_both(list to, object first, object second) except -1:
    """Append both or none. A list grows without an object that the garbage collector tracks."""
    PyList_Append(to, first)
    try:
        PyList_Append(to, second)
    except MemoryError:
        to.pop()
        raise
    return 0


cdef char* write_cells(
    char* at, Column* cells, const uint32_t* sizes, Py_ssize_t count
) noexcept:
    """Write a column of keys or values; `sizes` points to the first length, in its `Row`."""
    cdef uint32_t length
    cdef Py_ssize_t row, nils = 0
    cdef uint32_t longest = 0, shortest = NIL
    cdef const char* data = cells.data
    for row in range(count):
        length = sizes[row * STEP]
        if length == NIL:
            nils += 1
            length = 0
        longest = max(longest, length)
        shortest = min(shortest, length)
    if nils == count:
        return put_bin(put_tag(at, 0), NULL, -1)
    if not nils and longest == shortest:
        # All cells are the same if each is the one before it.
        if not longest or not memcmp(data, data + longest, longest * <size_t>(count - 1)):
            return put_bin(put_tag(at, 0), data, longest)
    return write_packed(at, cells, sizes, count, nils > 0, longest, shortest)


cdef char* write_packed(
    char* at,
    Column* cells,
    const uint32_t* sizes,
    Py_ssize_t count,
    bint nils,
    uint32_t longest,
    uint32_t shortest,
) noexcept:
    """Write a `bin` of cells, as columns.py describes it."""
    cdef Py_ssize_t row
    cdef int width
    at = put_tag(at, 2)
    if not nils and longest == shortest:
        at = put_sized(at, 5 + cells.used, 0xC4, 0xC5, 0xC6)
        at[0] = 0
        memcpy(at + 1, &longest, 4)
        at += 5
    else:
        width = 1 if longest < 0xFF else 2 if longest < 0xFFFF else 4
        at = put_sized(at, 1 + <size_t>count * width + cells.used, 0xC4, 0xC5, 0xC6)
        at[0] = <char>(width | (0x80 if nils else 0))
        at += 1
        if width == 1:  # the low bytes: of a nil's they are all ones
            for row in range(count):
                at[row] = <char>sizes[row * STEP]
        elif width == 2:
            for row in range(count):
                memcpy(at + 2 * row, &sizes[row * STEP], 2)
        else:
            for row in range(count):
                memcpy(at + 4 * row, &sizes[row * STEP], 4)
        at += count * width
    memcpy(at, cells.data, cells.used)
    return at + cells.used


cdef char* write_stamps(
    char* at, const Row* rows, Py_ssize_t count, int64_t base, int64_t highest
) noexcept:
    cdef uint64_t span = <uint64_t>(highest - base), delta
    cdef Py_ssize_t row
    cdef int width
    if not span:
        at = put_tag(at, 0)
        at[0] = 0
        return at + 1
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < <uint64_t>1 << 32 else 8
    at = put_sized(put_tag(at, 2), 1 + <size_t>count * width, 0xC4, 0xC5, 0xC6)
    at[0] = <char>width
    at += 1
    for row in range(count):
        delta = <uint64_t>(rows[row].stamp - base)
        memcpy(at, &delta, width)
        at += width
    return at


# -- the arguments of send_columns ---------------------------------------------------------------------

@cython.final
cdef class Cells:
    """Reads a column of a `RecordColumns` cell by cell. It checks every offset: an Arrow array may have
    been made of any bytes."""

    cdef list _cells
    cdef Py_buffer _offsets, _data, _nulls
    cdef bint _wide
    cdef Py_ssize_t _count

    def __cinit__(self, column):
        if type(column) is list:
            self._cells = column
            return
        offsets = np.ascontiguousarray(column.offsets)
        self._wide = offsets.dtype == np.int64
        if not self._wide and offsets.dtype != np.int32:
            raise TypeError("offsets must be int32 or int64")
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        self._count = self._offsets.len // (8 if self._wide else 4) - 1
        PyObject_GetBuffer(column.data, &self._data, PyBUF_SIMPLE)
        if column.nulls is not None:
            PyObject_GetBuffer(np.ascontiguousarray(column.nulls, np.bool_), &self._nulls, PyBUF_SIMPLE)
            self._count = min(self._count, self._nulls.len)

    def __dealloc__(self):
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._data)
        PyBuffer_Release(&self._nulls)

    cdef inline int at(self, Py_ssize_t row, const char** data, Py_ssize_t* size) except -1:
        """Return 0, or 1 for a cell that is neither bytes nor None. Runs no Python code unless it raises."""
        cdef PyObject* cell
        cdef int64_t start, end
        if self._cells is not None:
            if row >= PyList_GET_SIZE(self._cells):
                raise IndexError(row)
            cell = PyList_GET_ITEM(self._cells, row)
            if row + AHEAD < PyList_GET_SIZE(self._cells):
                prefetch(PyList_GET_ITEM(self._cells, row + AHEAD))
                prefetch(<char*>PyList_GET_ITEM(self._cells, row + AHEAD) + 64)
            if cell == <PyObject*>None:
                size[0] = -1
                return 0
            if not PyBytes_CheckExact(<object>cell):
                return 1
            data[0] = PyBytes_AS_STRING(<object>cell)
            size[0] = PyBytes_GET_SIZE(<object>cell)
            return 0
        if row >= self._count:
            raise IndexError(row)
        if self._nulls.buf != NULL and (<char*>self._nulls.buf)[row]:
            size[0] = -1
            return 0
        if self._wide:
            start, end = (<int64_t*>self._offsets.buf)[row], (<int64_t*>self._offsets.buf)[row + 1]
        else:
            start, end = (<int32_t*>self._offsets.buf)[row], (<int32_t*>self._offsets.buf)[row + 1]
        if not 0 <= start <= end <= self._data.len:
            raise ValueError(f"row {row} lies outside of its column's bytes")
        data[0] = <char*>self._data.buf + start
        size[0] = end - start
        return 0


def by_key(keys, Py_ssize_t count):
    """As `partitioner.by_key`, for a list or a BinaryColumn."""
    cdef Cells cells = Cells(keys)
    cdef const char* key = NULL
    cdef Py_ssize_t row, size = 0
    if not 1 <= count <= _MOST_PARTITIONS:
        raise ValueError(f"a topic cannot have {count} partitions")
    numbers = []
    for row in range(len(keys)):
        if cells.at(row, &key, &size) or size < 0:
            raise TypeError("keys must be bytes")
        numbers.append((murmur2(key, size) & 0x7FFFFFFF) % <uint32_t>count)
    return numbers


@cython.final
cdef class Rows:
    """The columns of a `RecordColumns`."""

    cdef Py_ssize_t count
    cdef Cells values, keys
    cdef list headers
    cdef bint framed
    cdef Py_buffer _stamps

    def __cinit__(self, columns):
        self.count = len(columns)
        self.values = Cells(columns.values)
        self.keys = None if columns.keys is None else Cells(columns.keys)
        self.headers = columns.headers
        self.framed = columns.framed
        PyObject_GetBuffer(
            np.ascontiguousarray(columns.timestamps, np.int64), &self._stamps, PyBUF_SIMPLE
        )
        if self._stamps.len != self.count * 8:
            raise ValueError("there must be a timestamp for every row")

    def __dealloc__(self):
        PyBuffer_Release(&self._stamps)

    cdef inline int at(self, Py_ssize_t row, Record* record) except -1:
        """As `Cells.at`."""
        cdef PyObject* encoded
        if self.values.at(row, &record.value, &record.value_size):
            return 1
        record.key_size = -1
        if self.keys is not None and self.keys.at(row, &record.key, &record.key_size):
            return 1
        record.headers_size = 0
        if self.headers is not None:
            if row >= PyList_GET_SIZE(self.headers):
                raise IndexError(row)
            encoded = PyList_GET_ITEM(self.headers, row)
            if not PyBytes_CheckExact(<object>encoded):
                return 1
            record.headers = PyBytes_AS_STRING(<object>encoded)
            record.headers_size = PyBytes_GET_SIZE(<object>encoded)
        record.stamp = (<int64_t*>self._stamps.buf)[row]
        record.framed = self.framed
        return 0

    cdef bint check(self, Py_ssize_t most) except -1:
        """Return whether all cells are bytes or None. Raises RecordTooLarge, if they are."""
        cdef Record record
        cdef Py_ssize_t row, largest = 0
        for row in range(self.count):
            if self.at(row, &record):
                return False
            weigh(&record, PY_SSIZE_T_MAX)
            largest = max(largest, record.size - OVERHEAD)
        if largest > most:
            raise too_large(largest, most)
        return True


@cython.final
cdef class Runs:
    """The batches of rows: for each partition, how many lie side by side in one batch."""

    cdef list done, builders
    cdef Py_ssize_t* first
    cdef Py_ssize_t* next

    def __cinit__(self, Py_ssize_t count):
        self.done, self.builders = [], [None] * count
        self.first = <Py_ssize_t*>PyMem_RawMalloc(2 * count * sizeof(Py_ssize_t))
        if self.first == NULL:
            raise MemoryError
        self.next = self.first + count

    def __dealloc__(self):
        PyMem_RawFree(self.first)

    cdef inline bint follows(self, Py_ssize_t number, BatchBuilder builder) noexcept:
        """Return whether the builder's next record continues the partition's last run."""
        cdef PyObject* last = PyList_GET_ITEM(self.builders, number)
        return last == <PyObject*>builder and self.next[number] == builder.count

    cdef int end(self, Py_ssize_t number) except -1:
        builder = self.builders[number]
        if builder is not None:
            if self.next[number] > self.first[number]:
                self.done.append(
                    (builder, self.first[number], self.next[number] - self.first[number])
                )
            self.builders[number] = None
        return 0

    cdef int begin(self, Py_ssize_t number, BatchBuilder builder) except -1:
        """May run Python code."""
        self.end(number)
        self.first[number] = self.next[number] = builder.count
        self.builders[number] = builder
        return 0

    cdef list all(self):
        for number in range(len(self.builders)):
            self.end(number)
        return self.done


# -- the appender -------------------------------------------------------------------------------------

@cython.final
cdef class Topic:
    """The open builders of one topic, by partition (None: there is none), and the next partition."""

    cdef object name
    cdef Py_ssize_t count, sticky, next_candidate
    cdef int64_t sticky_left
    cdef list builders, candidates


@cython.final
cdef class Appender:
    """Takes records from any number of threads: see `batch_builder.Appender`."""

    cdef readonly object owner
    cdef readonly int64_t used, limit, records
    cdef readonly Py_ssize_t batch_bytes
    cdef Py_ssize_t _room, _most
    cdef int _strategy
    cdef object _function, _random, _batch
    cdef bint _is_async, _framed
    cdef dict _topics
    cdef list _unannounced
    cdef bint _closed

    def __init__(
        self,
        owner,
        *,
        Py_ssize_t batch_bytes,
        int64_t buffer_bytes,
        Py_ssize_t max_record_bytes,
        strategy="key-hash",
        random=None,
        delivery=Delivery,
        batch=BatchBuilder,
        bint framed=False,
    ):
        if delivery is not Delivery and delivery is not AsyncDelivery:
            raise TypeError(f"handles are Delivery or AsyncDelivery, not {delivery!r}")
        if self._topics is not None:
            raise TypeError("an appender is made once")
        self.owner = owner
        self.batch_bytes = min(batch_bytes, _LARGEST)
        self.limit = buffer_bytes
        self._room = min(2 * self.batch_bytes, _LARGEST)
        self._most = min(max_record_bytes, _LARGEST)
        self._strategy = FUNCTION
        if isinstance(strategy, str):  # what is called need not have a hash
            self._strategy = {"key-hash": KEY_HASH, "sticky": STICKY, "round-robin": ROUND_ROBIN}[
                strategy
            ]
        self._function = strategy
        self._random = Random() if random is None else random
        self._unannounced = []
        self._is_async = delivery is AsyncDelivery
        self._batch = batch
        self._framed = framed
        self._topics = {}

    # -- callers' threads ---------------------------------------------------------------------------

    def send(
        self, topic, value, key=None, partition=None, headers=None, timestamp=None, on_delivery=None
    ):
        cdef Delivery delivery
        if headers is not None and type(headers) not in (dict, tuple, list):
            headers = as_headers(headers)  # they may be read twice, an iterator only once
        while True:
            delivery = self._take(topic, value, key, partition, headers, timestamp, on_delivery)
            if delivery is not None:
                return delivery
            self.owner.admit(topic, -1 if partition is None else as_int("partition", partition))

    def try_send(
        self, topic, value, key=None, partition=None, headers=None, timestamp=None, on_delivery=None
    ):
        return self._take(topic, value, key, partition, headers, timestamp, on_delivery)

    cdef Delivery _take(
        self, topic, value, key, partition, headers, timestamp, on_delivery
    ):
        cdef Record record
        cdef long long number = -1
        cdef Py_ssize_t among = -1
        cdef int overflow = 0, spends
        cdef PyObject* found
        cdef Topic known
        cdef BatchBuilder builder
        cdef Delivery delivery
        record.key_size = record.value_size = -1
        record.headers_size = 0
        record.framed = self._framed
        record.fixed = partition is not None
        if value is not None:
            if not PyBytes_CheckExact(value):
                value = as_bytes("value", value)
            record.value, record.value_size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        if key is not None:
            if not PyBytes_CheckExact(key):
                key = as_bytes("key", key)
            record.key, record.key_size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        if headers is not None and headers:
            headers = encoded_headers(headers)
            record.headers, record.headers_size = PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers)
        weigh(&record, self._most)
        if timestamp is None:
            record.stamp = now()
        else:
            record.stamp = PyLong_AsLongLongAndOverflow(timestamp, &overflow) if PyLong_CheckExact(
                timestamp
            ) else as_timestamp(timestamp)
            if overflow or not _EARLY <= record.stamp <= _MAX_TIMESTAMP:
                as_timestamp(timestamp)
        if partition is not None:
            if not PyLong_CheckExact(partition):
                partition = as_int("partition", partition)
            number = PyLong_AsLongLongAndOverflow(partition, &overflow)
            if overflow:
                number = -1
        delivery = <Delivery>(
            AsyncDelivery.__new__(AsyncDelivery)
            if self._is_async
            else Delivery.__new__(Delivery)
        )
        if on_delivery is not None:
            if not PyCallable_Check(on_delivery):
                as_callback("on_delivery", on_delivery)
        while True:
            found = PyDict_GetItemWithError(self._topics, topic)
            if found == NULL or self.used >= self.limit:
                return None
            known = <Topic>found
            spends = 0
            if partition is not None:
                if number < 0:
                    raise no_partition(topic, partition, known.count)
                if number >= known.count:
                    return None
            elif self._strategy == FUNCTION:
                if among != known.count:
                    among = known.count
                    number = by_function(self._function, known.name, [key], 1, among)[0]
                    continue
            else:
                number = self._spread(known, &record, &spends)
                if number < 0:
                    continue
            builder = self._builder(known, number, record.size)
            if builder is None:
                continue
            builder._append(&record, on_delivery, delivery)
            break
        delivery._builder = builder
        delivery._rank = builder.count - 1
        delivery.timestamp = record.stamp
        self._count_record(known, spends, record.size)
        if not builder._announced or builder.size >= self.batch_bytes:
            self._register(builder, builder.size >= self.batch_bytes)
        return delivery

    cdef inline Py_ssize_t _spread(
        self, Topic topic, const Record* record, int* spends
    ) except -2:
        """Return the partition of a record that names none; -1 if Python code ran, and the caller must look
        at everything again. `spends` is set to the strategy whose state must advance."""
        if self._strategy == KEY_HASH and record.key_size >= 0:
            if topic.count == 1:
                return 0
            return (murmur2(record.key, record.key_size) & 0x7FFFFFFF) % <uint32_t>topic.count
        if self._strategy == ROUND_ROBIN:
            spends[0] = ROUND_ROBIN
            return topic.candidates[topic.next_candidate % PyList_GET_SIZE(topic.candidates)]
        if topic.sticky_left <= 0:
            topic.sticky = draw(self._random, topic.candidates, topic.sticky)
            topic.sticky_left = self.batch_bytes
            if not 0 <= topic.sticky < PyList_GET_SIZE(topic.builders):
                raise ValueError("the random source has left its range")
            return -1
        spends[0] = STICKY
        return topic.sticky

    cdef inline BatchBuilder _builder(self, Topic topic, Py_ssize_t number, Py_ssize_t size):
        """Return the open builder of a partition, with room for a record; None if Python code ran, and the
        caller must look at everything again."""
        cdef BatchBuilder builder = <BatchBuilder>PyList_GET_ITEM(topic.builders, number)
        if builder is None or builder.closed:
            self._open(topic, number)
            return None
        if builder.count and (builder.size + size > self._room or builder.count >= _MAX_RECORDS):
            self._register(builder, True)
            return None
        return builder

    cdef int _open(self, Topic topic, Py_ssize_t number) except -1:
        cdef BatchBuilder fresh = self._batch(TopicPartition(topic.name, number), self.owner), last
        self._unannounced.append(fresh)  # until the owner knows it
        last = topic.builders[number]  # another thread may have been here
        if last is None or last.closed:
            topic.builders[number] = fresh
        else:
            self._unannounced.remove(fresh)
        return 0

    cdef inline void _count_record(self, Topic topic, int spends, Py_ssize_t size) noexcept:
        self.used += size
        self.records += 1
        if spends == STICKY:
            topic.sticky_left -= size
        elif spends == ROUND_ROBIN:
            topic.next_candidate += 1

    cdef int _register(self, BatchBuilder builder, bint full) except -1:
        """Register a batch with the owner, and then as full. Each thread does so before it continues, so
        that no record counts as sent whose batch the owner does not know."""
        if not builder._announced:
            self.owner.register_batch(builder)
            builder._announced = True
            if builder in self._unannounced:
                self._unannounced.remove(builder)
        if full and not builder.closed:
            builder.closed = True
            self.owner.register_full_batch(builder)
        return 0

    def send_columns(self, topic, columns, Py_ssize_t start):
        cdef Rows rows = Rows(columns)
        cdef PyObject* known
        partition = -1 if columns.partition is None else columns.partition
        if start < 0:
            raise ValueError("the first row is 0")
        if start == 0 and not rows.check(self._most):
            columns.check(self._most)
            rows = Rows(columns)
        while start < rows.count:
            known = PyDict_GetItemWithError(self._topics, topic)
            if known == NULL or self.used >= self.limit or partition >= (<Topic>known).count:
                self.owner.admit(topic, partition)
            else:
                return self._append_rows(<Topic>known, columns, rows, start)
        return start, []

    cdef tuple _append_rows(self, Topic topic, object columns, Rows rows, Py_ssize_t start):
        cdef Record record
        cdef Py_ssize_t number, named = -1, count = topic.count, row = start
        cdef Py_ssize_t end = min(rows.count, start + _ROWS_AT_ONCE)
        cdef int spends
        cdef BatchBuilder builder
        cdef const int64_t[::1] chosen = None
        cdef Runs runs = Runs(count)
        partition = columns.partition
        if partition is not None:
            if not 0 <= partition < count:
                raise no_partition(topic.name, partition, count)
            named = partition
            if not 0 <= named < count:
                raise ValueError(f"there is no partition {named}")
        elif self._strategy == FUNCTION:
            chosen = columns.choose(self._function, topic.name, count)
            if chosen.shape[0] != rows.count:
                raise ValueError("there must be a partition for every row")
        record.fixed = partition is not None
        while row < end and self.used < self.limit:
            if self._closed or topic.count != count:
                break
            if rows.at(row, &record):
                raise TypeError("columns must be checked from the first row on")
            weigh(&record, self._most)
            spends = 0
            if named >= 0:
                number = named
            elif chosen is not None:
                number = chosen[row]
                if not 0 <= number < count:
                    raise ValueError(f"there is no partition {number}")
            else:
                number = self._spread(topic, &record, &spends)
                if number < 0:
                    continue
            builder = self._builder(topic, number, record.size)
            if builder is None:
                continue
            if not runs.follows(number, builder):
                runs.begin(number, builder)
                continue
            try:
                builder._append(&record, None, None)
            except MemoryError:
                if row == start:
                    raise
                break  # the rows before were taken
            runs.next[number] += 1
            self._count_record(topic, spends, record.size)
            row += 1
            if not builder._announced or builder.size >= self.batch_bytes:
                self._register(builder, builder.size >= self.batch_bytes)
        return row, runs.all()

    # -- the sender's thread ------------------------------------------------------------------------

    def set_topic_partitions(self, str topic not None, Py_ssize_t partitions, available):
        cdef Topic known
        if not 1 <= partitions <= _MOST_PARTITIONS:
            raise ValueError(f"a topic cannot have {partitions} partitions")
        candidates = [int(number) for number in available] or list(range(partitions))
        if not all(0 <= number < partitions for number in candidates):
            raise ValueError(f"{candidates} are not among {partitions} partitions")
        if self._closed:
            return
        known = self._topics.get(topic)
        if known is None:
            known = Topic.__new__(Topic)
            known.name, known.sticky = topic, -1
            known.builders = []
            self._topics[topic] = known
        while len(known.builders) < partitions:
            known.builders.append(None)
        known.count, known.candidates = partitions, candidates
        if known.sticky not in candidates:
            known.sticky_left = 0

    def forget(self, str topic not None):
        cdef Topic known = self._topics.pop(topic, None)
        cdef BatchBuilder builder
        if known is not None:
            known.count = 0  # a thread that is about to append looks again
            for builder in known.builders:
                if builder is not None:
                    builder.closed = True

    def register_interrupted(self):
        """Register batches whose registration was interrupted."""
        for builder in list(self._unannounced):
            if builder.count:
                self._register(builder, False)

    def released(self, int64_t size):
        self.used -= size

    def close(self):
        self._closed = True
        self._topics.clear()
