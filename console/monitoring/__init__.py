"""What watches a process while it runs: its metrics and health pages, its log, and `folkmoot top`."""
