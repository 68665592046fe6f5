"""Where Spark looks for the data source named folkmoot; importing it stays cheap."""

from folkmoot.spark_apps.source import FolkmootDataSource as DefaultSource

__all__ = ["DefaultSource"]
