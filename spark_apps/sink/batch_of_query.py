"""Which micro-batch a task is of, as the engine tells executors."""

from typing import Final, NamedTuple

from pyspark import TaskContext

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the engine's jobs (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY)."""


class BatchOfQuery(NamedTuple):
    """The query's id stays the same over restarts; a batch that runs again has its number again."""

    query: str
    number: int


def batch_of_query() -> BatchOfQuery | None:
    """None outside of a stream."""
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(QUERY_ID)
    batch = None if task is None else task.getLocalProperty(BATCH_ID)
    return None if query is None or batch is None else BatchOfQuery(query, int(batch))
