"""The shell of the tests of the command line."""

from tests.console.conftest import shell

__all__ = ["shell"]
