"""The programs that are measured: producers and consumers of each system, each in a process of its own.

Those of the peers run in the environment that `environment.py` makes; they import nothing of ours.
"""
