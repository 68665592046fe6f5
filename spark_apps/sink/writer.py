"""Spark's sink: what writes the rows of a task, in an executor's Python worker."""

# ruff: noqa: N802 The names of methods are Spark's.

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.datasource import WriterCommitMessage

from folkmoot.protocol.errors import FolkmootError, SerializationError
from folkmoot.spark_apps.sink.config import SinkConfig
from folkmoot.spark_apps.sink.rounds import Rows, RoundWriter

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
