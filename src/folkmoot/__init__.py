"""A replicated, partitioned, append-only log with consumer groups.

Public names are loaded when they are first used, so that `import folkmoot` (and with it
`folkmoot --help`) stays fast.
"""

__version__ = "0.1.0"
