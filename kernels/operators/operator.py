"""An operator as its folder declares it: entries, shapes, workloads, regions and the numerical contract.

The calling convention of a C entry is one rule: its tensors as pointers, inputs first and outputs after,
in the order of operator.toml, then `const int64_t *dims` in the order of the entry's `dims`. bfloat16
travels as uint16. A Triton entry is a function of `kernel.py` that takes the same tensors, in the same order, as
torch tensors on the current device; it launches on the current stream, never waits, and returns None.

The tables of an operator.toml describe the target `cpu`. `[target.NAME]` describes another: what it holds replaces
the table of that name, what it leaves out is shared, but for baselines. An operator may have the one without the
other. What repeats itself has a short form (`compact`).
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from kernelbraid.kernels.operators.compact import written_out

EntryPath = Literal["full", "decode"]
Dtype = Literal["float32", "bfloat16", "int32", "int64"]
Dims = Mapping[str, int] | Mapping[str, int | tuple[int, int]]
Sources = Mapping[str, str]
"""File name to text; the whole implementation, nothing is implied."""

STYLES = ("normal", "scale_3", "scale_30", "zeros", "equal_rows", "cancellation")
"""How the inputs of a check are drawn; what each means for an operator is its reference.py's to say."""
UNIT_ROWS = "unit_rows"
"""For operators that divide rows by their root mean square: the square is one to float32's last bits, and results lie
where bfloat16 rounds either way, so that another order of the squares' sum shows in a hundred rows."""
ABSORBED = "absorbed"
"""For operators that add products up: two large ones cancel in every other result; what is added while one of them is
in the sum loses its last bits, and what that is follows from the order."""
OWN_STYLES = (UNIT_ROWS, ABSORBED)

CPU = "cpu"
OF_TARGET = (
    *("entry", "workload", "check", "hidden", "beyond", "region"),
    *("baseline", "tolerance", "libraries", "architectures"),
)
"""What a target may declare of its own; the rest is the operator's, whatever it runs on."""

HERE = Path(__file__).parent


class OperatorError(Exception):
    """An operator's folder cannot be used; the message names the file and the next step."""


class OperatorMissing(OperatorError):
    """No operator of that name is packaged, and no folder of that path holds one."""


class TargetMissing(OperatorError):
    """The operator is there, and declares nothing for that target; the message names those that it has."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One argument of an entry. A shape's items are dim names or whole numbers."""

    name: str
    dtype: Dtype
    shape: tuple[str | int, ...]
    gathered: bool = False
    """A call may read a few of its rows alone, so that its bytes bound no time."""

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in elements under the given dims."""
        return tuple(dims[item] if isinstance(item, str) else item for item in self.shape)


@dataclass(frozen=True, slots=True)
class Entry:
    """One C symbol, or one function of kernel.py: a path (full sequence or decode) in one dtype."""

    symbol: str
    path: EntryPath
    dtype: Dtype
    dims: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A timed shape. `limit_ratio` is the largest latency allowed, as a multiple of the root's."""

    name: str
    entry: str
    dims: Mapping[str, int]
    weight: float
    limit_ratio: float
    operations: float = 0.0
    """Floating-point operations that every implementation must do; 0 where they are not declared."""


@dataclass(frozen=True, slots=True)
class Check:
    """A full-path call whose rows must equal the decode entry's bit for bit, and float64 within tolerance."""

    full: str
    decode: str
    dims: Mapping[str, int]
    styles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hidden:
    """Where unannounced shapes are drawn from: a fixed value or an inclusive [low, high] per dim."""

    full: str
    decode: str
    dims: Mapping[str, int | tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Beyond:
    """How far sizes may go: shapes past the declared checks are drawn from here, at the sizes that sources name.

    All that these ranges allow together is a legal call, and the float64 reference of it is affordable.
    """

    full: str
    decode: str
    dims: Mapping[str, int | tuple[int, int]]
    same: Mapping[str, str]
    """Dims that are as large as another one, whatever that is."""
    most: float
    """Largest product of all dims, those of `same` left out, where the work grows with it."""


@dataclass(frozen=True, slots=True)
class Region:
    """A named stretch of source and the paths whose results or speed depend on it."""

    name: str
    paths: tuple[EntryPath, ...]
    contract: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Baseline:
    """A build shown beside the root and never a candidate: other flags, or another source folder."""

    name: str
    flags: tuple[str, ...] = ()
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest error against float64: of one element over the row's largest, and root mean square."""

    max_ratio: float
    rms_ratio: float


@dataclass(frozen=True)
class Operator:
    """Everything declared about one operator on one target; `folder` holds its sources and reference."""

    name: str
    target: str
    summary: str
    definition: str
    folder: Path
    contract: Mapping[str, str]
    entries: tuple[Entry, ...]
    workloads: tuple[Workload, ...]
    checks: tuple[Check, ...]
    hidden: tuple[Hidden, ...]
    beyond: tuple[Beyond, ...]
    regions: tuple[Region, ...]
    baselines: tuple[Baseline, ...]
    tolerances: Mapping[str, Tolerance]
    libraries: tuple[str, ...]
    """Modules that a candidate's host code may import beside those of its language."""
    architectures: tuple[str, ...]
    """GPU architectures that a candidate must compile for, such as sm_90; empty on the CPU."""
    declaration: str = field(repr=False)

    @property
    def address(self) -> str:
        """What `load_operator` finds it by from any working folder: its packaged name, else its folder's whole path."""
        return self.folder.name if self.folder.parent == HERE.resolve() else str(self.folder)

    def entry(self, symbol: str) -> Entry:
        """The entry of that symbol."""
        return next(entry for entry in self.entries if entry.symbol == symbol)

    def workload(self, name: str) -> Workload:
        """The workload of that name."""
        return next(workload for workload in self.workloads if workload.name == name)

    def root_sources(self, target: str | None = None) -> Sources:
        """The root implementation's files, on this target unless another is named."""
        return read_sources(self.folder / (target or self.target) / "root")

    def best_sources(self) -> Sources:
        """The fastest implementation that ships for this target: its folder `best`, else the root's files."""
        best = self.folder / self.target / "best"
        return read_sources(best) if best.is_dir() else self.root_sources()

    def baseline_sources(self, baseline: Baseline, target: str | None = None) -> Sources:
        """A baseline's files: its own folder's, or the root's under other flags."""
        return read_sources(self.folder / (target or self.target) / (baseline.folder or "root"))

    def targets(self) -> tuple[str, ...]:
        """Targets with a root implementation."""
        return _targets(self.folder)


def read_sources(folder: Path) -> Sources:
    """Every file of a folder as text, by name.

    Raises OperatorError when the folder is missing, empty or not UTF-8.
    """
    try:
        found = {path.name: path.read_text("utf-8") for path in sorted(folder.iterdir()) if path.is_file()}
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"cannot read the sources in {folder}: {error}") from error
    if not found:
        raise OperatorError(f"{folder} holds no source files")
    return MappingProxyType(found)


def load_operator(name_or_folder: str, target: str = CPU) -> Operator:
    """An operator by its name in this package, or by the path of a folder that holds an operator.toml.

    Raises OperatorMissing, TargetMissing with the targets that it has, and OperatorError with what is wrong in the
    declaration.
    """
    folder = _folder(name_or_folder)
    try:
        text = (folder / "operator.toml").read_text("utf-8")
        return _operator(folder.resolve(), target, tomllib.loads(text), text)
    except OSError as error:
        known = ", ".join(operator_names())
        where = f"; a folder's path counts from {Path.cwd()}" if "/" in name_or_folder else ""
        raise OperatorMissing(f"no operator {name_or_folder!r}: known are {known}, or name a folder{where}") from error
    except KeyError as error:
        raise OperatorError(f"{folder / 'operator.toml'} lacks {error}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise OperatorError(f"{folder / 'operator.toml'} is not a valid declaration: {error}") from error


def operator_targets(name_or_folder: str) -> tuple[str, ...]:
    """Targets with a root implementation, cpu first; empty where there is no such operator."""
    return _targets(_folder(name_or_folder))


def _folder(name_or_folder: str) -> Path:
    packaged = HERE / name_or_folder
    return packaged if (packaged / "operator.toml").is_file() else Path(name_or_folder)


def _targets(folder: Path) -> tuple[str, ...]:
    found = {path.parent.name for path in folder.glob("*/root") if path.is_dir()}
    return tuple(sorted(found, key=lambda name: (name != CPU, name)))


def operator_names() -> tuple[str, ...]:
    """The operators shipped with this package."""
    return tuple(sorted(path.parent.name for path in HERE.glob("*/operator.toml")))


def _on_target(folder: Path, target: str, declared: dict[str, Any]) -> dict[str, Any]:
    """The tables that hold on this target."""
    own = declared.get("target", {}).get(target, {})
    if unknown := set(own) - set(OF_TARGET):
        raise ValueError(f"[target.{target}] has the unknown {', '.join(sorted(unknown))}")
    declares = [CPU] * ("entry" in declared) + sorted(declared.get("target", {}))
    if target not in declares and declares:
        where = folder / "operator.toml"
        raise TargetMissing(f"{where} declares nothing for {target}; its targets: {', '.join(declares)}")
    # A baseline is a build by its own target's compiler, so none is shared.
    shared = declared if target == CPU else {**declared, "baseline": []}
    return written_out({**shared, **own})


def _operator(folder: Path, target: str, declared: dict[str, Any], text: str) -> Operator:
    raw = _on_target(folder, target, declared)
    entries = tuple(_entry(item) for item in raw["entry"])
    symbols = {entry.symbol for entry in entries}
    operator = Operator(
        name=raw["name"],
        target=target,
        summary=raw["summary"],
        definition=raw["definition"],
        folder=folder,
        contract=MappingProxyType(dict(raw["contract"])),
        entries=entries,
        workloads=tuple(_workload(item) for item in raw["workload"]),
        checks=tuple(
            Check(item["full"], item["decode"], _frozen(item["dims"]), tuple(item.get("styles", ["normal"])))
            for item in raw["check"]
        ),
        hidden=tuple(
            Hidden(
                item["full"],
                item["decode"],
                _frozen({k: tuple(v) if isinstance(v, list) else v for k, v in item["dims"].items()}),
            )
            for item in raw.get("hidden", [])
        ),
        beyond=tuple(_beyond(item) for item in raw.get("beyond", [])),
        regions=tuple(
            Region(item["name"], tuple(item["paths"]), tuple(item.get("contract", []))) for item in raw["region"]
        ),
        baselines=tuple(
            Baseline(item["name"], tuple(item.get("flags", [])), item.get("folder")) for item in raw.get("baseline", [])
        ),
        tolerances=MappingProxyType({name: Tolerance(**item) for name, item in raw["tolerance"].items()}),
        libraries=tuple(raw.get("libraries", [])),
        architectures=tuple(raw.get("architectures", [])),
        declaration=text,
    )
    for problem in _problems(operator, symbols):
        raise ValueError(problem)
    return operator


def _entry(raw: dict[str, Any]) -> Entry:
    def tensors(items: list[dict[str, Any]]) -> tuple[Tensor, ...]:
        return tuple(_tensor(item) for item in items)

    return Entry(
        raw["symbol"],
        raw["path"],
        raw["dtype"],
        tuple(raw["dims"]),
        tensors(raw["inputs"]),
        tensors(raw["outputs"]),
    )


def _tensor(raw: dict[str, Any]) -> Tensor:
    return Tensor(raw["name"], raw["dtype"], tuple(raw["shape"]), bool(raw.get("gathered", False)))


def _workload(raw: dict[str, Any]) -> Workload:
    return Workload(
        raw["name"],
        raw["entry"],
        _frozen(raw["dims"]),
        float(raw["weight"]),
        float(raw["limit_ratio"]),
        float(raw.get("operations", 0)),
    )


def _beyond(raw: dict[str, Any]) -> Beyond:
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in raw["dims"].items()}
    same = {name: value for name, value in sizes.items() if isinstance(value, str)}
    own = {name: value for name, value in sizes.items() if name not in same}
    return Beyond(raw["full"], raw["decode"], _frozen(own), _frozen(same), float(raw.get("most", math.inf)))


def _frozen(dims: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(dims))


def _problems(operator: Operator, symbols: set[str]) -> Iterator[str]:
    named: list[tuple[str, Dims]] = [(workload.entry, workload.dims) for workload in operator.workloads]
    pairs: tuple[Check | Hidden, ...] = (*operator.checks, *operator.hidden)
    for pair in pairs:
        named += [(pair.full, pair.dims), (pair.decode, pair.dims)]
    for beyond in operator.beyond:
        same = {name: beyond.dims.get(of, 0) for name, of in beyond.same.items()}
        named += [(beyond.full, {**beyond.dims, **same}), (beyond.decode, beyond.dims)]
    if unknown := {symbol for symbol, _ in named} - symbols:
        yield f"undeclared entries: {', '.join(sorted(unknown))}"
    yield from _entry_problems(operator)
    yield from _beyond_problems(operator)
    least = 1 if operator.target == CPU else 0
    yield from (text for symbol, dims in named for text in _dim_problems(operator.entry(symbol), dims, least))
    yield from _check_problems(operator)
    yield from _region_problems(operator)
    yield from _repeated("workload", [workload.name for workload in operator.workloads])
    if any(workload.weight <= 0 or workload.limit_ratio < 1 for workload in operator.workloads):
        yield "a workload needs a positive weight and a limit_ratio of at least 1"
    if any(not 0 <= workload.operations < math.inf for workload in operator.workloads):
        yield "a workload has as many operations as must be done: none, or a positive number"


def _repeated(what: str, names: list[str]) -> Iterator[str]:
    yield from (f"two of one name: {what} {name}" for name in sorted({n for n in names if names.count(n) > 1}))


def _entry_problems(operator: Operator) -> Iterator[str]:
    yield from _repeated("entry", [entry.symbol for entry in operator.entries])
    for entry in operator.entries:
        if entry.path not in get_args(EntryPath):
            yield f"{entry.symbol}: path {entry.path!r} is none of {', '.join(get_args(EntryPath))}"
        if entry.dtype not in operator.tolerances:
            yield f"{entry.symbol}: no tolerance for {entry.dtype}"
        for tensor in (*entry.inputs, *entry.outputs):
            if tensor.dtype not in get_args(Dtype):
                yield f"{entry.symbol}: {tensor.name} has the unknown dtype {tensor.dtype!r}"
            if unknown := {item for item in tensor.shape if isinstance(item, str)} - set(entry.dims):
                yield f"{entry.symbol}: {tensor.name} has undeclared dims: {', '.join(sorted(unknown))}"


def _dim_problems(entry: Entry, dims: Dims, least: int) -> Iterator[str]:
    """A decode entry may have dims that its check's full entry lacks: the reference derives them.

    Tensors without elements are part of what a GPU operator is checked with; the harness for C has none.
    """
    if entry.path == "full" and (missing := set(entry.dims) - set(dims)):
        yield f"a shape of {entry.symbol} lacks {', '.join(sorted(missing))}"
    for name, value in dims.items():
        low, high = value if isinstance(value, tuple) else (value, value)
        if not least <= low <= high:
            yield f"a shape of {entry.symbol} has {name} = {value}: dims are at least {least}, ranges [low, high]"


def _check_problems(operator: Operator) -> Iterator[str]:
    pairs: tuple[Check | Hidden | Beyond, ...] = (*operator.checks, *operator.hidden, *operator.beyond)
    for pair in pairs:
        full, decode = operator.entry(pair.full), operator.entry(pair.decode)
        if (full.path, decode.path) != ("full", "decode"):
            yield f"{pair.full} against {pair.decode}: the first must be a full entry, the second a decode entry"
    styles = {style for check in operator.checks for style in check.styles}
    if unknown := styles - {*STYLES, *OWN_STYLES}:
        yield f"unknown styles: {', '.join(sorted(unknown))}; known are {', '.join((*STYLES, *OWN_STYLES))}"


def _beyond_problems(operator: Operator) -> Iterator[str]:
    for beyond in operator.beyond:
        if unmet := set(beyond.same.values()) - set(beyond.dims):
            yield f"sizes of {beyond.full}: as large as {', '.join(sorted(unmet))}, which has no range there"
        lowest = math.prod(low if isinstance(low, int) else low[0] for low in beyond.dims.values())
        if not lowest <= beyond.most:
            yield f"sizes of {beyond.full}: their least product is {lowest}, more than the most of {beyond.most:g}"


def _region_problems(operator: Operator) -> Iterator[str]:
    yield from _repeated("region", [region.name for region in operator.regions])
    for region in operator.regions:
        if not region.paths or set(region.paths) - set(get_args(EntryPath)):
            yield f"region {region.name}: its paths are one or both of {', '.join(get_args(EntryPath))}"
    if unmet := {item for region in operator.regions for item in region.contract} - set(operator.contract):
        yield f"regions name undeclared contract items: {', '.join(sorted(unmet))}"
