"""compute-sanitizer as the last gate before a promotion: what the checks cannot see, on a few small shapes.

memcheck finds accesses outside an allocation that fall between guards, racecheck hazards in shared memory that did not
happen to change a bit. Slow, so a harness runs it only when asked to, where the program is installed.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.cuda.launcher import Settings, environment, program
from kernelbraid.kernels.audit.cuda.sources import CACHE, SOURCES, unpacked
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.outcome import Correctness, capped_log
from kernelbraid.kernels.operators.cases import Reference
from kernelbraid.kernels.operators.operator import Operator

TOOLS = {"memcheck": Correctness.GUARD_OVERWRITTEN, "racecheck": Correctness.NONDETERMINISTIC}
"""Tool to the verdict of what it finds."""
FOUND = 77
RUN_S = 120.0
MOST_BYTES = 1 << 20
_FINDING = re.compile(rb"^=+ +((?:Invalid|Error|Warning|Race|Program hit|Fatal).*)$", re.MULTILINE)


def find_sanitizer() -> Path | None:
    """The program, where it is installed."""
    found = shutil.which("compute-sanitizer")
    return Path(found) if found else None


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """One harness's."""

    program: Path
    settings: Settings
    operator: Operator
    reference: Reference

    def check(self, artifact: Artifact) -> int:
        """Both tools over the smallest case of every entry pair; how many calls they watched.

        Raises CandidateFailed with the first finding.
        """
        with tempfile.TemporaryDirectory(dir=self.settings.scratch) as name:
            folder = Path(name)
            for part in (SOURCES, CACHE):
                (folder / part).mkdir()
            unpacked(artifact, folder)
            calls = list(self._calls(folder))
            specification = self._specification(folder, calls)
            for tool, verdict in TOOLS.items():
                self._watch(tool, verdict, folder, specification)
        return len(TOOLS) * len(calls)

    def _watch(self, tool: str, verdict: Correctness, folder: Path, specification: Path) -> None:
        watched = (*program("sanitized"), str(specification))
        own = (str(self.program), "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "4")
        folders = dict.fromkeys(("HOME", "TMPDIR"), str(folder)) | {"TRITON_CACHE_DIR": str(folder / CACHE)}
        try:
            done = subprocess.run(
                [*own, *watched],
                env=environment(self.settings) | folders,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=RUN_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise CandidateFailed(Correctness.HUNG, f"{tool} did not end within {RUN_S:g} s") from error
        log = capped_log(done.stdout, done.stderr)
        if done.returncode == FOUND:
            finding = _FINDING.search(done.stdout)
            what = finding[1].decode(errors="replace") if finding else "see the log"
            raise CandidateFailed(verdict, f"compute-sanitizer's {tool}: {what}", log)
        if done.returncode:
            raise CandidateFailed(Correctness.CRASHED, f"it ended with status {done.returncode} under {tool}", log)

    def _specification(self, folder: Path, calls: Sequence[Mapping[str, object]]) -> Path:
        wanted = {
            "box": str(self.settings.library or ""),
            "reads": [*self.settings.reads, str(Path(__file__).resolve().parent)],
            "writes": [*self.settings.writes, "/proc", str(folder)],
            "sources": str(folder / SOURCES),
            "calls": calls,
        }
        path = folder / "specification.json"
        path.write_text(json.dumps(wanted))
        return path

    def _calls(self, folder: Path) -> Iterator[Mapping[str, object]]:
        """The smallest checked shape of each entry that is no trifle, with its inputs in files."""
        rng = np.random.default_rng(0)
        for number, (symbol, dims) in enumerate(self._shapes().items()):
            entry = self.operator.entry(symbol)
            values = self.reference.make_inputs(entry, dims, rng, "normal")
            tensors: list[Mapping[str, object]] = []
            for tensor in entry.inputs:
                path = folder / f"{number}-{tensor.name}"
                path.write_bytes(np.ascontiguousarray(values[tensor.name]).tobytes())
                tensors.append({"dtype": tensor.dtype, "shape": tensor.resolve(dims), "file": str(path)})
            for tensor in entry.outputs:
                tensors.append({"dtype": tensor.dtype, "shape": tensor.resolve(dims), "file": None})
            yield {"entry": symbol, "tensors": tensors}

    def _shapes(self) -> dict[str, Mapping[str, int]]:
        """By entry: the largest declared shape within MOST_BYTES, else the smallest workload's."""
        found: dict[str, Mapping[str, int]] = {}
        named = [(check.full, check.dims) for check in self.operator.checks]
        named += [(workload.entry, workload.dims) for workload in self.operator.workloads]
        for symbol, dims in sorted(named, key=lambda pair: self._bytes(*pair)):
            if symbol not in found or self._bytes(symbol, dims) <= MOST_BYTES:
                found[symbol] = dims
        return found

    def _bytes(self, symbol: str, dims: Mapping[str, int]) -> int:
        entry = self.operator.entry(symbol)
        return sum(4 * int(np.prod(tensor.resolve(dims))) for tensor in (*entry.inputs, *entry.outputs))
