"""One decoder layer of the five models through a step of reinforcement learning: rollout, then one update.

Arms: `stock` (transformers' eager layers with SDPA), which has to compute old log-probabilities once more; `library`
(FlashAttention-4, cuBLASLt without workspace) and `unified` (our operators), which reuse those of the rollout. The
library's process starts with variables that would change the others, so it is its own. A phase's milliseconds are
weighted as a rollout of 1,024 tokens after a prompt of 1,024 and one update over as many tokens would, for a batch of
8: one prefill, 1,024 decoded tokens, one recomputed forward (stock alone), one forward and backward.

A stock layer decodes under the mask that transformers makes for its static cache. `stock_unmasked` is the same layer
without one, as if every sequence always filled its cache: SDPA is faster so, and transformers
itself does not do it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernelbraid.kernels.models.widths import WIDTHS
from kernelbraid.ops.bench.arm import Line, lines_of

WEIGHTS: Mapping[str, float] = {"prefill": 1, "decode": 1024, "recompute": 1, "update": 1}
UNMASKED = "stock_unmasked"
RECOMPUTING = ("stock", UNMASKED)
COMPARED = (("stock", "library"), ("stock", "unified"), (UNMASKED, "unified"), ("library", "unified"))
STARVED = {"TORCH_BLAS_PREFER_CUBLASLT": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
ARMS = ("stock", "library", "unified")
SHOWN = ("stock", UNMASKED, "library", "library_triton", "unified")
TIMEOUT_S = 420.0
MODULE = "kernelbraid.ops.bench.layer_phases"

Result = Mapping[str, Any]


def bench_layers(arms: Sequence[str] = ARMS, models: Sequence[str] = tuple(WIDTHS)) -> Result:
    """Phases by arm and model, the weighted sums, how many times better an arm is than another, and what failed."""
    starved = tuple(arm for arm in arms if arm.startswith("library"))
    others = tuple(arm for arm in arms if arm not in starved)
    command = f"kernelbraid bench layers --arms {','.join(arms)} --models {','.join(models)} --json"
    lines = [line for group in (others, starved) if group for line in _lines(group, models)]
    return {"command": command, **summary(lines)}


def summary(lines: Sequence[Line]) -> Result:
    """The lines of all processes, put together."""
    environments = [line["environment"] for line in lines if "environment" in line]
    measured: dict[str, dict[str, Line]] = {}
    for line in lines:
        for each in _masked_or_not(line) if "ms" in line else ():
            measured.setdefault(each["arm"], {})[each["model"]] = each
    failed = [line for line in lines if "failed" in line]
    sums = {
        arm: {model: weighted_ms(arm, line["ms"]) for model, line in each.items()} for arm, each in measured.items()
    }
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environments[0] if environments else None,
        "weights": dict(WEIGHTS),
        "ms": {arm: {model: line["ms"] for model, line in each.items()} for arm, each in measured.items()},
        "sum_ms": sums,
        "times_better": times_better(sums),
        "sm_mhz": {arm: {model: line.get("sm_mhz") for model, line in each.items()} for arm, each in measured.items()},
        "operators": {model: line["operators"] for model, line in measured.get("unified", {}).items()},
        "failed": failed,
    }


def _masked_or_not(line: Line) -> Iterator[Line]:
    """A stock layer's line once for each way that it decodes."""
    phases = dict(line["ms"])
    unmasked = phases.pop("decode_unmasked", None)
    yield {**line, "ms": phases}
    if unmasked is not None:
        yield {**line, "arm": UNMASKED, "ms": {**phases, "decode": unmasked}}


def weighted_ms(arm: str, phases: Mapping[str, float]) -> float:
    """The sum over a rollout and an update; only a stock layer is recomputed."""
    counted = (phase for phase in WEIGHTS if phase != "recompute" or arm in RECOMPUTING)
    return sum(WEIGHTS[phase] * phases[phase] for phase in counted)


def times_better(sums: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
    """For each pair of arms, the first's sum over the second's, by model and as geometric mean."""
    found: dict[str, Mapping[str, float]] = {}
    for before, after in COMPARED:
        shared = [model for model in sums.get(before, {}) if model in sums.get(after, {})]
        if shared:
            ratios = {model: sums[before][model] / sums[after][model] for model in shared}
            found[f"{before}/{after}"] = ratios | {"mean": statistics.geometric_mean(ratios.values())}
    return found


def table(result: Result) -> Iterator[str]:
    """Milliseconds of each phase, and the sums, as lines of Markdown."""
    phases = ("prefill", "decode", "recompute", "update_forward", "update")
    yield "| model | arm | " + " | ".join(phases) + " | sum | stock / arm | library / arm |"
    yield "|---" * (len(phases) + 5) + "|"
    for model in WIDTHS:
        for arm in (arm for arm in SHOWN if arm in result["ms"]):
            ms = result["ms"][arm].get(model)
            if ms is not None:
                yield _row(result, model, arm, [ms[phase] for phase in phases])


def _row(result: Result, model: str, arm: str, ms: Sequence[float]) -> str:
    total = result["sum_ms"][arm][model]
    others = (result["sum_ms"].get(other, {}).get(model) for other in ("stock", "library"))
    ratios = " | ".join(f"{other / total:.2f}" if other else "" for other in others)
    return f"| {model} | {arm} | " + " | ".join(f"{each:.3f}" for each in ms) + f" | {total:.1f} | {ratios} |"


def _lines(arms: Sequence[str], models: Sequence[str]) -> list[Line]:
    """What arms that share a process printed."""
    lines = lines_of(MODULE, (",".join(arms), *models), TIMEOUT_S, STARVED if arms[0].startswith("library") else None)
    return [
        {"arm": ",".join(arms), "model": "", "failed": line["ended"]} if "ended" in line else line for line in lines
    ]
