"""Answers a test's calls, one JSON object a line: {"call": NAME, ...} → {"result": ...} or {"error": ...}.

Runs in the environment of the foreign clients, where nothing of this project is installed.
"""

import json
import sys
from collections.abc import Callable
from typing import Any


def answer(calls: object, failure: Callable[[Exception], Any]) -> None:
    """Serve the methods of `calls` until the input ends. `failure` tells an error's code, None for none."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = getattr(calls, asked.pop("call"))(**asked)
            told = {"result": result}
        except Exception as error:
            told = {
                "error": {"code": failure(error), "message": f"{type(error).__name__}: {error}"}
            }
        print(">" + json.dumps(told), flush=True)
