"""A home for Spark in which its Python processes start quickly.

Spark puts `SPARK_HOME/python/lib/pyspark.zip` first on the path of every Python process that it
starts, and a query starts half a dozen. Modules in a zip have no cached bytecode, so each of them
compiles PySpark anew: seconds, on a busy machine beyond the ten that Spark waits for a worker. A
home without the zip lets them import the installed package, which is the same.
"""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

_directories: dict[str, tempfile.TemporaryDirectory[str]] = {}


def use_unzipped_home() -> None:
    """Set SPARK_HOME, if it is not set, to a directory that lives as long as this process.

    PySpark has to be installed for the Python that PYSPARK_PYTHON names, as it is for this one.
    """
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or not spec.submodule_search_locations:
        return
    installed = Path(spec.submodule_search_locations[0])
    if not (installed / "jars").is_dir():
        return  # Spark is not from PyPI here: leave it alone
    directory = tempfile.TemporaryDirectory(prefix="folkmoot-spark-", ignore_cleanup_errors=True)
    home = Path(directory.name)
    for entry in installed.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    (home / "python" / "lib").mkdir(parents=True)
    os.environ["SPARK_HOME"] = str(home)
    _directories[directory.name] = directory
