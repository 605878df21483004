"""Which implementation of an operator runs here, and which did run."""

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kernelbraid.kernels.operators.operator import HERE, OperatorError, read_sources

Kind = Literal["best", "root"]
TARGET = "triton"
PROMOTED_ON = ("sm_90",)
"""Where the campaigns ran whose bests are packaged."""


@dataclass(frozen=True)
class Implementation:
    """A loaded kernel.py. `digest` is over the names and texts of its sources."""

    operator: str
    kind: Kind
    digest: str
    module: ModuleType
    target: str = TARGET

    def entry(self, symbol: str) -> Callable[..., None]:
        """The function of that name: inputs, then outputs, then epsilon where it has one. Raises OperatorError."""
        found = vars(self.module).get(symbol)
        if not callable(found):
            raise OperatorError(f"{self.module.__file__} has no function {symbol}: add it, or use another operator")

        def call(*arguments: Any) -> None:
            with _compiled_as_audited():
                found(*arguments)
            count(which)

        which = Ran(self.operator, symbol, self.target, self.kind, self.digest)
        return call


@dataclass(frozen=True, slots=True)
class Ran:
    """How often one entry of one implementation was launched. A replayed CUDA graph counts once, at its capture."""

    operator: str
    symbol: str
    target: str
    kind: Kind
    digest: str
    calls: int = 0


_calls: Counter[Ran] = Counter()


def count(which: Ran) -> None:
    """Note one launch."""
    _calls[which] += 1


def ran() -> tuple[Ran, ...]:
    """What was launched since the start or the last `reset_ran()`, by operator and symbol."""
    counted = (replace(which, calls=calls) for which, calls in _calls.items())
    return tuple(sorted(counted, key=lambda each: (each.operator, each.symbol, each.target, each.kind)))


def reset_ran() -> None:
    """Count from zero again."""
    _calls.clear()


@cache
def implementation(operator: str) -> Implementation:
    """The best implementation packaged for the GPU here, else the root. Raises OperatorError when there is neither.

    A best is taken where it was promoted, unless its kernel.py names other ARCHITECTURES, such as ("sm_80", "sm_90").
    """
    for folder, kind in _folders(operator):
        module = _module(operator, folder / "kernel.py")
        if kind == "root" or _architecture() in vars(module).get("ARCHITECTURES", PROMOTED_ON):
            return Implementation(operator, kind, digest(read_sources(folder)), module)
    raise OperatorError(f"operator {operator} has no implementation for {TARGET} and {_architecture()} in {HERE}")


@cache
def entry(operator: str, symbol: str) -> Callable[..., None]:
    """A function of the operator's implementation here."""
    return implementation(operator).entry(symbol)


def digest(sources: Mapping[str, str]) -> str:
    """SHA-256 over the names and texts."""
    return hashlib.sha256(json.dumps(dict(sources), sort_keys=True).encode()).hexdigest()


def _folders(operator: str) -> Iterator[tuple[Path, Kind]]:
    kinds: tuple[Kind, ...] = ("best", "root")
    for kind in kinds:
        folder = HERE / operator / TARGET / kind
        if (folder / "kernel.py").is_file():
            yield folder, kind


def _architecture() -> str:
    """Of the current device, as Triton and nvcc name it; "none" without one."""
    if importlib.util.find_spec("torch") is None:
        return "none"
    import torch

    if not torch.cuda.is_available():
        return "none"
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _module(operator: str, path: Path) -> ModuleType:
    if importlib.util.find_spec("triton") is None:
        raise OperatorError(f"{operator} needs triton, which is not installed: pip install 'kernelbraid[gpu]'")
    spec = importlib.util.spec_from_file_location(f"kernelbraid_{operator}_{path.parent.name}", path)
    if spec is None or spec.loader is None:
        raise OperatorError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _compiled_as_audited() -> Iterator[None]:
    """Contraction off while a kernel may be compiled, as in the audit; other Triton code keeps its setting."""
    from triton import knobs

    before = knobs.language.default_fp_fusion
    if not before:
        yield
        return
    knobs.language.default_fp_fusion = False
    try:
        yield
    finally:
        knobs.language.default_fp_fusion = before
