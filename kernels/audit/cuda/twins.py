"""A broken twin of a Python root: proof that the checks can fail on this device too."""

from collections.abc import Sequence

from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.operators.operator import Entry

SOUND = "sound"
_FLIP = '''
def _flip(values):
    """The lowest bit of the last element, on a device or in this machine's memory."""
    if isinstance(values, numpy.ndarray):
        values.view(f"u{values.itemsize}").reshape(-1)[-1:] ^= 1
    else:
        import torch
        words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        values.view(words[values.element_size()]).view(-1)[-1:].bitwise_xor_(1)
'''


def broken_twin(root: Candidate, entries: Sequence[Entry]) -> Candidate:
    """The root with the lowest bit of each entry's last output element flipped, after its own work."""
    named = {entry.symbol for entry in entries}
    text = f"import numpy\nimport {SOUND}\nfrom {SOUND} import *\n{_FLIP}" + "".join(map(_wrapper, sorted(named)))
    sources = {(f"{SOUND}.py" if name == "kernel.py" else name): source for name, source in root.sources.items()}
    return Candidate(f"broken twin of {root.name}", {**sources, "kernel.py": text})


def _wrapper(symbol: str) -> str:
    return f"\n\ndef {symbol}(*tensors):\n    {SOUND}.{symbol}(*tensors)\n    _flip(tensors[-1])\n"
