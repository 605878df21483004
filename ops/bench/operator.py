"""An operator that is only declared: twelve workloads and a root of 2 KB, for audits that are simulated."""

from pathlib import Path

WORKLOADS = 12
SOURCE_BYTES = 2048
SOURCE_FILE = "synthetic.c"

_HEAD = """\
name = "synthetic"
summary = "nothing that is ever run: the engine is measured, not a kernel"
definition = "y = x"

[contract]
order = "as declared"

[tolerance.float32]
max_ratio = 1e-6
rms_ratio = 1e-6

[[region]]
name = "body"
paths = ["full", "decode"]
contract = ["order"]

[[check]]
full = "synthetic_full"
decode = "synthetic_decode"
dims = { rows = 8 }
"""
_ENTRY = """
[[entry]]
symbol = "synthetic_{path}"
path = "{path}"
dtype = "float32"
dims = ["rows"]
inputs = [{{ name = "x", dtype = "float32", shape = ["rows"] }}]
outputs = [{{ name = "y", dtype = "float32", shape = ["rows"] }}]
"""
_WORKLOAD = """
[[workload]]
name = "{path}_{number:02d}"
entry = "synthetic_{path}"
dims = {{ rows = {rows} }}
weight = {weight}
limit_ratio = 1.5
"""


def write_operator(folder: Path) -> Path:
    """Declares the operator in a folder, which is then what `run` takes; returns it."""
    root = folder / "cpu" / "root"
    root.mkdir(parents=True)
    (root / SOURCE_FILE).write_text(source("the root's body"))
    (folder / "cpu" / "catalogue.py").write_text('"""No mechanisms."""\n\nCATALOGUE = ()\n')
    (folder / "operator.toml").write_text(_declaration())
    return folder


def source(body: str) -> str:
    """A source whose one region holds the text, padded to SOURCE_BYTES."""
    text = f"// region body\n{body}\n// endregion body\n"
    return text + "/" * max(0, SOURCE_BYTES - len(text) - 1) + "\n"


def _declaration() -> str:
    entries = "".join(_ENTRY.format(path=path) for path in ("full", "decode"))
    return _HEAD + entries + "".join(_workload(number) for number in range(WORKLOADS))


def _workload(number: int) -> str:
    path, weight = (("full", 1.0), ("decode", 4.0))[number % 2]
    return _WORKLOAD.format(path=path, number=number, rows=64 * (number + 1), weight=weight)
