"""The auditor's own side stays clean: nothing in its process can run a candidate's code or unpack its objects."""

import ast
import subprocess
import sys
from pathlib import Path

import kernelbraid.kernels.audit as audit
from kernelbraid.kernels.audit.cuda import CHILD_SIDE

AUDIT = Path(audit.__path__[0]).resolve()
KEPT_OUT = {"torch", "triton", "pickle", "marshal", "multiprocessing", "shelve", "cloudpickle"}


def imported(path: Path) -> set[str]:
    """Top-level names of all that a file imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


def test_only_the_child_side_imports_torch_and_nobody_unpickles() -> None:
    child_side = {AUDIT / "cuda" / name for name in CHILD_SIDE}
    found = {path: imported(path) & KEPT_OUT for path in AUDIT.rglob("*.py")}
    assert child_side <= set(found)
    assert {path.name: names for path, names in found.items() if names and path not in child_side} == {}
    assert set().union(*(found[path] for path in child_side)) <= {"torch", "triton"}


def test_auditor_never_loads_the_child_side_and_what_it_imports() -> None:
    program = (
        "import sys; import kernelbraid.kernels.audit.opening; "
        "print([name for name in sys.modules if name.partition('.')[0] in {'torch', 'triton'}"
        " or name.rpartition('.')[2] in {'child', 'child_cuda', 'child_host', 'zygote'} and 'kernelbraid' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
