# cython: language_level=3, wraparound=False
"""Cells and records of a batch's columns, made in C when they are asked for.

The twins in plain Python are in columns.py and record_iterator.py; `speedups` says which are in use,
and tests hold them equal. Whatever the columns say, nothing is read that lies outside of their
memory: each cell is compared with it.

`__next__` runs no Python code, switches to no other thread, and makes nothing that the garbage collector
tracks. So a `cut` from a signal handler or another thread comes between two records, and `row` is
always right.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t

from folkmoot.protocol.records import Record

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)

cdef object _RECORD = Record


cdef class CellIterator:
    """The cells of a binary column from the first on: `data[offsets[i]:offsets[i + 1]]`, or None where
    `nulls` is true.

    `data` is any buffer, `offsets` one of int32 or int64, `nulls` None or one of bools. They are kept
    from changing their size as long as this is there. Raises ValueError where they do not fit together.
    """

    cdef Py_buffer _data, _offsets, _nulls
    cdef bint _has_data, _has_offsets, _has_nulls, _is_wide
    cdef Py_ssize_t _count, _position

    def __cinit__(self, data, offsets, nulls=None):
        PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
        self._has_data = True
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_ND)
        self._has_offsets = True
        if self._offsets.ndim != 1 or self._offsets.itemsize not in (4, 8) or not self._offsets.len:
            raise ValueError("offsets of cells are one row of int32 or int64")
        self._is_wide = self._offsets.itemsize == 8
        self._count = self._offsets.shape[0] - 1
        if nulls is not None:
            PyObject_GetBuffer(nulls, &self._nulls, PyBUF_ND)
            self._has_nulls = True
            if self._nulls.itemsize != 1 or self._nulls.len != self._count:
                raise ValueError("there is not one null flag for each cell")

    def __dealloc__(self):
        if self._has_data:
            PyBuffer_Release(&self._data)
        if self._has_offsets:
            PyBuffer_Release(&self._offsets)
        if self._has_nulls:
            PyBuffer_Release(&self._nulls)

    cdef inline object at(self, Py_ssize_t row):
        """The cell of a row that there is."""
        cdef int64_t start, end
        if self._has_nulls and (<const char *> self._nulls.buf)[row]:
            return None
        if self._is_wide:
            start = (<const int64_t *> self._offsets.buf)[row]
            end = (<const int64_t *> self._offsets.buf)[row + 1]
        else:
            start = (<const int32_t *> self._offsets.buf)[row]
            end = (<const int32_t *> self._offsets.buf)[row + 1]
        if not 0 <= start <= end <= self._data.len:
            raise ValueError(f"cell {row} does not lie within its column")
        return PyBytes_FromStringAndSize(<const char *> self._data.buf + start, end - start)

    def __iter__(self):
        return self

    def __next__(self):
        if self._position >= self._count:
            raise StopIteration
        cell = self.at(self._position)
        self._position += 1
        return cell

    def __length_hint__(self):
        return self._count - self._position


cdef class RecordIterator:
    """The records of a batch, or a part of one; each is made when it is asked for.

    See `folkmoot.protocol.record_iterator`. Raises ValueError where columns differ in length.
    """

    cdef object _topic, _partition, _append_time
    cdef object _offsets, _stamp, _keys, _values, _headers
    cdef CellIterator _key_cells, _value_cells
    cdef Py_buffer _times
    cdef bint _has_times, _is_dense
    cdef int64_t _base, _last_time
    cdef Py_ssize_t _row, _end

    def __cinit__(self, topic, partition, offsets, columns, append_time):
        stamps, headers = columns.timestamps, columns.headers
        self._topic, self._partition, self._append_time = topic, partition, append_time
        self._end = len(offsets)
        if isinstance(offsets, range) and offsets.step == 1:
            self._base, self._is_dense = offsets.start, True
        else:
            self._offsets = list(offsets)
        self._keys, self._key_cells = self._cells(columns.keys)
        self._values, self._value_cells = self._cells(columns.values)
        self._headers = None if headers is None else self._rows(headers)
        if isinstance(stamps, int):
            self._stamp = stamps
        else:
            PyObject_GetBuffer(stamps, &self._times, PyBUF_ND)
            self._has_times = True
            if self._times.itemsize != 8 or self._times.len != 8 * self._end:
                raise ValueError("there is not one timestamp of 64 bits for each record")

    def __dealloc__(self):
        if self._has_times:
            PyBuffer_Release(&self._times)

    cdef tuple _cells(self, column):
        """A column of keys or values as a list, None for none, or as an iterator whose cells are at hand."""
        if column is None:
            return None, None
        cells = iter(column)
        if not isinstance(cells, CellIterator):
            return self._rows(column), None
        if (<CellIterator> cells)._count != self._end:
            raise ValueError("there is not one cell for each record")
        return None, cells

    cdef list _rows(self, column):
        rows = column if type(column) is list else list(column)
        if len(rows) != self._end:
            raise ValueError("there is not one row for each record")
        return rows

    cdef inline object _time(self, Py_ssize_t row):
        """Neighbours often have one time: then it is one object."""
        cdef int64_t time
        if self._has_times:
            time = (<const int64_t *> self._times.buf)[row]
            if self._stamp is None or time != self._last_time:
                self._stamp, self._last_time = time, time
        return self._stamp

    @property
    def row(self):
        """How many records were handed out."""
        return self._row

    def cut(self):
        """End the iteration: nothing more is handed out."""
        self._end = self._row

    def __iter__(self):
        return self

    def __next__(self):
        cdef PyObject *fields[8]
        cdef Py_ssize_t row = self._row
        if row >= self._end:
            raise StopIteration
        offset = self._base + row if self._is_dense else (<list> self._offsets)[row]
        time = self._time(row)
        key = value = None
        if self._key_cells is not None:
            key = self._key_cells.at(row)
        elif self._keys is not None:
            key = (<list> self._keys)[row]
        if self._value_cells is not None:
            value = self._value_cells.at(row)
        elif self._values is not None:
            value = (<list> self._values)[row]
        fields[0] = <PyObject *> self._topic
        fields[1] = <PyObject *> self._partition
        fields[2] = <PyObject *> offset
        fields[3] = <PyObject *> time
        fields[4] = <PyObject *> key
        fields[5] = <PyObject *> value
        headers = () if self._headers is None else (<list> self._headers)[row]
        fields[6] = <PyObject *> headers
        fields[7] = <PyObject *> self._append_time
        record = PyObject_Vectorcall(_RECORD, fields, 8, NULL)
        self._row = row + 1
        return record

    def __length_hint__(self):
        return self._end - self._row
