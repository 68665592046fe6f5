"""Where Spark looks for the data source named folkmoot; importing it stays cheap."""
