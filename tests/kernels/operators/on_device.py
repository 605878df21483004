"""Compare Triton implementations with themselves on the GPU here: full against decode, bit for bit, and with float64.

    python tests/kernels/operators/on_device.py [OPERATOR ...] [--shapes 200] [--seed 0] [--out FILE]

What ships of each operator is called for every declared check and for so many random shapes beside them. One line for
each; everything as JSON in FILE. Needs torch and triton; `kernelbraid bench operators` measures times. Is itself a
test's machinery: test_on_device.py.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelbraid.kernels.audit.comparison import inaccuracy
from kernelbraid.kernels.operators.cases import Agreement, Call, load_reference
from kernelbraid.kernels.operators.operator import (
    Entry,
    Hidden,
    Operator,
    Sources,
    load_operator,
    operator_names,
    operator_targets,
)
from kernelbraid.kernels.runtime.loading import digest
from kernelbraid.kernels.toolchains.triton import FLAGS

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
DEVICE = "cuda"
ACCURATE_ELEMENTS = 1 << 22
POISON = {"float32": float("nan"), "bfloat16": float("nan"), "int32": -(1 << 30), "int64": -(1 << 30)}


@dataclass(frozen=True)
class Implementation:
    """A candidate's module, loaded here with the real torch."""

    operator: Operator
    module: Any

    def run(self, call: Call, kept: "Kept | None" = None) -> Mapping[str, torch.Tensor]:
        """The outputs of one call, on memory poisoned beforehand."""
        arguments = self.arguments(call, kept)
        vars(self.module)[call.entry.symbol](*arguments)
        names = [tensor.name for tensor in call.entry.outputs]
        return dict(zip(names, arguments[len(call.entry.inputs) :], strict=True))

    def arguments(self, call: Call, kept: "Kept | None" = None) -> list[torch.Tensor]:
        """Inputs on the device, and outputs full of what no entry writes."""
        place = kept.on_device if kept is not None else _on_device
        inputs = [place(np.asarray(call.inputs[tensor.name])) for tensor in call.entry.inputs]
        outputs = [
            torch.full(tensor.resolve(call.dims), POISON[tensor.dtype], dtype=TORCH_DTYPES[tensor.dtype], device=DEVICE)
            for tensor in call.entry.outputs
        ]
        return [*inputs, *outputs]


@dataclass(frozen=True)
class Kept:
    """The inputs of one shape, on the device once: other calls take tables and weights whole, and rows of the rest."""

    shared: Sequence[tuple[np.ndarray[Any, Any], torch.Tensor]]

    @classmethod
    def of(cls, call: Call) -> "Kept":
        """The inputs of the whole call."""
        arrays = (np.ascontiguousarray(values) for values in call.inputs.values())
        return cls([(values, _on_device(values)) for values in arrays])

    def on_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        """A shared tensor, a copy of a stretch of one, so that it is aligned, else a new one."""
        for whole, tensor in self.shared:
            first = (_address(values) - _address(whole)) // max(1, whole.itemsize)
            inside = first >= 0 and first + values.size <= whole.size
            if inside and values.size and values.dtype == whole.dtype and values.flags.c_contiguous:
                stretch = tensor.view(-1)[first : first + values.size].view(values.shape)
                return stretch if values.size == whole.size else stretch.clone()
        return _on_device(values)


def _address(values: np.ndarray[Any, Any]) -> int:
    return int(values.__array_interface__["data"][0])


def load(operator: Operator, sources: Sources, folder: Path) -> Implementation:
    """The sources as a module of their own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    for name, text in sources.items():
        (place / name).write_text(text)
    spec = importlib.util.spec_from_file_location(f"kernel_{place.name}", place / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Implementation(operator, module)


def _on_device(values: np.ndarray[Any, Any]) -> torch.Tensor:
    if values.dtype == np.uint16:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.int16)).to(DEVICE).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The values' bits as integers."""
    return values.view(torch.int16 if values.element_size() == 2 else torch.int32)


def random_dims(hidden: Hidden, rng: np.random.Generator) -> dict[str, int]:
    """Dims within the declared ranges, small ones as likely as large ones."""

    def drawn(low: int, high: int) -> int:
        exponent = rng.uniform(np.log(low + 1), np.log(high + 2))
        value = int(rng.integers(low, high + 1)) if rng.random() < 0.7 else int(np.exp(exponent)) - 1
        return min(high, max(low, value))

    return {name: drawn(*value) if isinstance(value, tuple) else value for name, value in hidden.dims.items()}


def cases(operator: Operator, shapes: int, rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, int], str]]:
    """Every declared check in every style, and `shapes` random shapes from the hidden ranges."""
    yield from ((c.full, c.decode, dict(c.dims), style) for c in operator.checks for style in c.styles)
    for number in range(shapes):
        hidden = operator.hidden[number % len(operator.hidden)]
        yield hidden.full, hidden.decode, random_dims(hidden, rng), "normal"


def disagreements(implementation: Implementation, shapes: int, seed: int = 0) -> tuple[dict[str, int], list[str]]:
    """How much was compared, and every case in which a bit differs or float64 is missed."""
    operator, rng = implementation.operator, np.random.default_rng(seed)
    reference, found = load_reference(operator), list[str]()
    counts = {"shapes": 0, "calls": 0, "elements": 0, "differing": 0}
    for full_name, decode_name, dims, style in cases(operator, shapes, rng):
        entry, decode = operator.entry(full_name), operator.entry(decode_name)
        call = Call(entry, dims, reference.make_inputs(entry, dims, rng, style))
        whole = implementation.run(call)
        where = f"{full_name} {dims} {style}"
        compared = list(_compared(implementation, call, decode, whole))
        differing = torch.stack([count for _, _, count in compared]).tolist() if compared else []
        counts["shapes"] += 1
        counts["calls"] += len(compared)
        counts["elements"] += sum(elements for _, elements, _ in compared)
        counts["differing"] += sum(differing)
        for (agreement, _, _), count in zip(compared, differing, strict=True):
            if count:
                found.append(f"{where}: {agreement.output} of {dict(agreement.call.dims)}: {count} differ")
        found += _inaccuracies(operator, call, whole, where)
    return counts, found


def _compared(
    implementation: Implementation, call: Call, decode: Entry, whole: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Agreement, int, torch.Tensor]]:
    """Every agreement of a call, how many elements it has and, on the device, how many of them differ."""
    kept = Kept.of(call)
    made, outputs = call, whole
    for agreement in load_reference(implementation.operator).agreements(call, decode):
        if agreement.call is not made:
            made, outputs = agreement.call, implementation.run(agreement.call, kept)
        got = outputs[agreement.output]
        index = tuple(
            torch.from_numpy(part).to(DEVICE) if isinstance(part, np.ndarray) else part for part in agreement.index
        )
        expected = whole[agreement.output][index]
        if got.shape != expected.shape:
            raise ValueError(f"{agreement.output}: {list(got.shape)} is compared with {list(expected.shape)}")
        yield agreement, got.numel(), (bits(got) != bits(expected)).sum()


def _inaccuracies(operator: Operator, call: Call, outputs: Mapping[str, torch.Tensor], where: str) -> Iterator[str]:
    if sum(np.asarray(values).size for values in call.inputs.values()) > ACCURATE_ELEMENTS:
        return
    exact = load_reference(operator).reference(call.entry, call.dims, call.inputs)
    for name, values in exact.items():
        if values.size and (
            problem := inaccuracy(_as_numpy(outputs[name]), values, operator.tolerances[call.entry.dtype])
        ):
            yield f"{where}: {name}: {problem}"


def _as_numpy(values: torch.Tensor) -> Any:
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).cpu().numpy().view(np.uint16)
    return values.cpu().numpy()


def agreement(name: str, seed: int, shapes: int, folder: Path) -> dict[str, Any]:
    """What was compared of what ships and what was found, or the error that ended it."""
    started, operator = time.perf_counter(), load_operator(name, "triton")
    sources = operator.best_sources()
    record: dict[str, Any] = {"sources": digest(sources)}
    try:
        counts, found = disagreements(load(operator, sources, folder), shapes, seed)
        record |= {**counts, "wrong": len(found), "found": found[:20]}
    except Exception as error:  # noqa: BLE001 one operator that does not run must not hide the others
        record["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return record | {"took_s": round(time.perf_counter() - started, 1)}


def main() -> int:
    """0 when nothing differed anywhere."""
    every = [name for name in operator_names() if "triton" in operator_targets(name)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", default=every)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "operators": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted.operators:
            record["operators"][name] = agreement(name, wanted.seed, wanted.shapes, Path(folder))
            print(f"{name}: {record['operators'][name]}", flush=True)
            if wanted.out:
                wanted.out.write_text(json.dumps(record, indent=1))
    return int(any(item.get("wrong", 1) for item in record["operators"].values()))


os.environ.update(dict(flag.split("=") for flag in FLAGS))
if __name__ == "__main__":
    sys.exit(main())
