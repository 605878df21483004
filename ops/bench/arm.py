"""A measuring process of its own: what it printed as JSON, one object a line, and whether it came to its end."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def lines_of(
    module: str, words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> list[Line]:
    """Run `python -m module words`; the last line says so, under "ended", where it ended early."""
    command = [sys.executable, "-m", module, *words]
    with tempfile.TemporaryFile("w+") as written, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=os.environ | dict(environment or {}), stdout=written, stderr=said)
        try:
            ended = f"ended with {process.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"was ended after {timeout_s:.0f} s"
        for file in (written, said):
            file.seek(0)
        whole = (line for line in written if line.startswith("{") and line.endswith("\n"))
        lines: list[Line] = [json.loads(line) for line in whole]
        if process.returncode:
            lines.append({"ended": f"the process {ended}: {said.read()[-2000:]}"})
    return lines
