"""The micro-batch of a task, from the engine's properties."""

from typing import Final, NamedTuple

from pyspark import TaskContext

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Local properties of the engine's jobs (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY;
the job group of a stream is its run)."""


class BatchOfQuery(NamedTuple):
    """The query's id stays the same over restarts; a batch that runs again has its number again, and is the
    first of its run."""

    query: str
    number: int
    run: str = ""


def batch_of_query() -> BatchOfQuery | None:
    """None outside of a stream."""
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty(QUERY_ID)
    batch = None if task is None else task.getLocalProperty(BATCH_ID)
    if task is None or query is None or batch is None:
        return None
    return BatchOfQuery(query, int(batch), task.getLocalProperty(RUN_ID) or "")
