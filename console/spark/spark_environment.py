"""The environment of Spark's programs: its home, a Java, and a Python that has folkmoot."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.protocol.errors import ConfigError, MissingExtra, pip_command
from folkmoot.spark_apps.home import use_unzipped_home

NEEDED: Final = ("pyspark", "pyarrow", "pandas")


def spark_environment(directory: Path) -> dict[str, str]:
    """Return the variables of spark-submit and of Spark's daemons.

    A home for Java may be made in `directory`; the home of Spark lives as long as this process.
    Raises MissingExtra, JavaNotFound, ConfigError.
    """
    if (library := next((each for each in NEEDED if find_spec(each) is None), None)) is not None:
        raise MissingExtra(f"Spark needs {library}, which is not installed: {pip_command('spark')}")
    java = spark_java_home(find_java(), directory)
    use_unzipped_home()
    home = os.environ.get("SPARK_HOME")
    if home is None:
        raise MissingExtra(
            f"the pyspark that is installed has no Spark in it: {pip_command('spark')}, or set SPARK_HOME"
        )
    if not (Path(home) / "bin" / "spark-class").is_file():
        raise ConfigError(f"SPARK_HOME is {home}, which has no bin/spark-class: unset it")
    return {
        "SPARK_HOME": home,
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # An executor of a driver that names no Python takes the first python3 there.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
