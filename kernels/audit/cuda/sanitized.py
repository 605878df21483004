"""Runs a candidate's calls once each, for compute-sanitizer to watch: every tensor an allocation of its own.

    sanitized.main() with SPECIFICATION, a JSON file: box, reads, writes, sources, and calls with files of their inputs
Boxes itself in as the zygote does before anything of the candidate is loaded. Exits 0 when every call returned.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelbraid.kernels.audit.cuda import child


def main() -> None:
    """The whole run."""
    wanted = json.loads(Path(sys.argv[1]).read_text())
    if wanted["box"]:
        child.enter_box(wanted["box"], "box_ancestor", wanted["reads"], wanted["writes"])
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    sys.path.insert(0, wanted["sources"])
    spec = importlib.util.spec_from_file_location("kernel", Path(wanted["sources"]) / "kernel.py")
    assert spec is not None, "a path was given"
    assert spec.loader is not None, "Python files have one"
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    for call in wanted["calls"]:
        _run(getattr(module, call["entry"]), call)


def _run(entry: Any, call: Mapping[str, Any]) -> None:
    import torch

    tensors = [_tensor(torch, given) for given in call["tensors"]]
    entry(*tensors)
    torch.cuda.synchronize()


def _tensor(torch: Any, given: Mapping[str, Any]) -> Any:
    dtype = vars(torch)[given["dtype"]]
    if given["file"] is None:
        return torch.empty(given["shape"], dtype=dtype, device="cuda")
    raw = bytearray(Path(given["file"]).read_bytes())
    values = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return values.reshape(given["shape"]).cuda()
