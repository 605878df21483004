"""The evidence behind a verdict, in words: checks, timing, limits, resources, machine, output.

A campaign's implementation and an audit on its own are shown by the same lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from kernelbraid.events.decider import LARGEST_DELTA_RATIO
from kernelbraid.events.state import Implementation
from kernelbraid.events.values import Environment, Measurement, Workload
from kernelbraid.kernels.audit.outcome import Blocks
from kernelbraid.ops.report.figures import plain, seconds, size

LOG_TAIL_LINES = 12
UNCUT_DIGEST = 12
"""So many signs of a digest are shown; JSON has all of it."""


class Checked(Protocol):
    """A kind of check, as an event or as the harness has it."""

    @property
    def name(self) -> str: ...

    @property
    def passed(self) -> bool: ...

    @property
    def cases(self) -> int: ...

    @property
    def evidence(self) -> str: ...


def evidence_lines(text: str) -> Iterator[str]:
    """Evidence whole, line by line, without signs that steer a terminal."""
    yield from (f"  {plain(line, keep_spaces=True)}" for line in text.splitlines() if line.strip())


def note_lines(evidence: str) -> Iterator[str]:
    """What the evidence of a verified candidate says beyond its counts: the shapes at sizes that its sources name."""
    yield from evidence_lines("\n".join(evidence.splitlines()[1:]))


def check_lines(checks: Sequence[Checked], told: str = "") -> Iterator[str]:
    """Every kind of check with its cases; below one that failed, what failed, unless it was `told` before."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        yield f"  {'ok  ' if check.passed else 'FAIL'}  {check.name:<{width}}  {check.cases:>6} cases"
        if check.evidence and check.evidence != told:
            yield from (f"      {line}" for line in evidence_lines(check.evidence))


def measurement_lines(measurement: Measurement) -> Iterator[str]:
    """The decision in numbers: what was estimated, how well, and what a promotion needs."""
    yield f"  ratio             {measurement.ratio:.4f} of {measurement.incumbent}, {_needed(measurement)}"
    error = f"{100 * measurement.standard_error_ratio:.3f} %" if measurement.has_error else "unknown from one group"
    yield f"  standard error    {error}, delta {100 * measurement.delta_ratio:.3f} %"
    if measurement.confirmation is not None and measurement.alpha is not None:
        yield f"  confirmation      k = {measurement.confirmation}, alpha {measurement.alpha:.3g}"
    else:
        yield "  confirmation      none: the screen ruled a gain out"
    if measurement.speedup_ratio is not None:
        yield f"  root over it      {measurement.speedup_ratio:.3f}x, in the same blocks"


def _needed(measurement: Measurement) -> str:
    """The upper bound where there is one, and what it has to lie below for a gain."""
    noisy = "; delta is too wide to decide with" if measurement.delta_ratio > LARGEST_DELTA_RATIO else ""
    least = 1 - measurement.delta_ratio
    bound = f"at most {measurement.upper_bound_ratio:.4f}; " if measurement.has_error else ""
    return f"{bound}a gain lies below {least:.4f}{noisy}"


def blocks_line(stage: str, blocks: Blocks) -> str:
    """How much was timed in one session, and the empty call that was subtracted."""
    paired = blocks.samples_ns[blocks.paired[0]].shape
    fewest = int((blocks.samples_ns[blocks.paired[0]] > 0).sum(axis=3).min())
    each = f"{fewest} to {paired[3]}" if fewest < paired[3] else f"{paired[3]}"
    beside = [_beside(blocks, arm) for arm in blocks.arms if arm not in blocks.paired]
    arms = f"{' and '.join(blocks.paired)} {paired[1]} x {each}"
    floor = [float(part) * 1e-9 for part in (blocks.floor_ns.min(), np.median(blocks.floor_ns), blocks.floor_ns.max())]
    spread = f"{seconds(floor[1])} ({seconds(floor[0])} to {seconds(floor[2])})"
    calls = f"{min(blocks.calls)} to {max(blocks.calls)}" if len(set(blocks.calls)) > 1 else f"{blocks.calls[0]}"
    samples = f"{paired[0]} group{'s' if paired[0] > 1 else ''}; samples a group: {', '.join([arms, *beside])}"
    return f"  {stage:<16}  {samples}; calls a message {calls}; floor {spread}"


def _beside(blocks: Blocks, arm: str) -> str:
    groups, per_group, _, samples = blocks.samples_ns[arm].shape
    fewer = f" in {groups} of them" if groups < blocks.groups else ""
    return f"{arm} {per_group} x {samples}{fewer}"


def blocks_figures(blocks: Blocks) -> dict[str, object]:
    """The same for JSON; times in seconds."""
    return {
        "groups": blocks.groups,
        "paired": list(blocks.paired),
        "samples": {arm: list(samples.shape) for arm, samples in blocks.samples_ns.items()},
        "calls": dict(zip(blocks.workloads, blocks.calls, strict=True)),
        "floor_s": [float(value) * 1e-9 for value in blocks.floor_ns],
        "medians_s": {arm: dict(blocks.medians_s(arm)) for arm in blocks.arms},
    }


def workload_lines(node: Implementation, workloads: Iterable[Workload]) -> Iterator[str]:
    """Every workload's latency; where the root was timed too, the slowdown limit against it."""
    measurement = node.measurement
    of_root = {} if measurement is None else measurement.root_ratios
    width = max(map(len, node.latencies_s))
    yield f"  {'workload':<{width}}   latency" + ("  of the root  at most  limit" if of_root else "")
    limits = {workload.name: workload.limit_ratio for workload in workloads}
    for workload, latency_s in node.latencies_s.items():
        limit = ""
        if measurement is not None and workload in of_root:
            bound = measurement.root_upper_bound_ratios[workload]
            kept = "kept" if bound <= limits[workload] else "EXCEEDED"
            limit = f"  {of_root[workload]:>11.3f}  {bound:>7.3f}  {limits[workload]:>5g}  {kept}"
        yield f"  {workload:<{width}}  {seconds(latency_s):>8}{limit}"


def resource_lines(resources: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Facts of the artifact."""
    yield from (f"  {name:<16}  {_resource(name, value)}" for name, value in resources)


def _resource(name: str, value: float) -> str:
    return size(value) if name.endswith("_bytes") else f"{value:g}"


def environment_lines(environment: Environment) -> Iterator[str]:
    """Where it was measured: every field that says something, digests cut."""
    for name, value in environment.model_dump(mode="json").items():
        if shown := _field(name, value):
            yield f"  {name:<16}  {shown}"


def _field(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key} {part:.4g}" if isinstance(part, float) else f"{key} {part}" for key, part in value.items()
        )
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    text = plain(str(value))
    return text[:UNCUT_DIGEST] if name.endswith("_digest") else text


def log_lines(log: str, *, whole: bool = False) -> Iterator[str]:
    """What builder and runner printed: the last lines, or all of them."""
    lines = log.splitlines()
    shown = lines if whole else lines[-LOG_TAIL_LINES:]
    if not shown:
        return
    left_out = "" if len(shown) == len(lines) else f", last {len(shown)} of {len(lines)} lines"
    yield from ("", f"output of builder and runner{left_out}")
    yield from (f"  {plain(line, None if whole else 160, keep_spaces=True)}" for line in shown)
