"""An audit on its own: somebody's sources against an operator's root, with no campaign and no store.

Harness, checks and arithmetic are a campaign's; what a campaign settles from its log is fixed here: it is the first
confirmation (k = 1, so alpha is 0.025), and the incumbent is the root or the sources that were named instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kernelbraid.agents.auditor import bootstrap_seed, environment_of, judge
from kernelbraid.agents.search import HarnessFactory, declared_contract, native_harness, require_target
from kernelbraid.events.decider import INFRASTRUCTURE_RETRIES
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.values import Contract, EntryPath, Environment, Measurement, Performance
from kernelbraid.kernels.audit import outcome as found
from kernelbraid.kernels.audit import statistics
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.environment import SANDBOX_NONE
from kernelbraid.kernels.audit.outcome import AuditOutcome, Blocks, Candidate, CheckResult, Verdict
from kernelbraid.kernels.operators.operator import OperatorError, Sources, load_operator

SOURCE_SUFFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cpu": (".c", ".h", ".inc"),
        "triton": (".py",),
        "cuda": (".cu", ".cuh", ".h", ".py"),
    }
)
"""Which files of a folder are an implementation's, by target: what else lies there is left alone."""

CONFIRMATION = 1


class SourcesMissing(KernelbraidError):
    """There is no file or folder of sources where one was named."""


@dataclass(frozen=True, slots=True)
class WorkloadTiming:
    """One workload in seconds a call, all arms timed in turn.

    `ratio` is candidate over root and `upper_bound_ratio` its 97.5 % bound; both and `root_s` are None where another
    incumbent was named and the screen already ruled a gain out, as the root is not timed then. The bound alone is None
    after a screen of one group, which tells of no scatter. `incumbent_ratio` is candidate over incumbent.
    """

    workload: str
    path: EntryPath
    weight: float
    limit_ratio: float
    candidate_s: float
    incumbent_s: float
    incumbent_ratio: float
    root_s: float | None
    ratio: float | None
    upper_bound_ratio: float | None

    @property
    def within_limit(self) -> bool:
        """Whether the slowdown limit is kept at the bound, or by the estimate without one, as far as there is any."""
        slowest = self.ratio if self.upper_bound_ratio is None else self.upper_bound_ratio
        return slowest is None or slowest <= self.limit_ratio


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit on its own came to.

    `performance`, `measurement` and `workloads` are there if and only if the sources were verified. `outcome` holds
    every check, every timed block, resources, the output of builder and runner, and the seconds of each stage.
    """

    operator: str
    target: str
    incumbent: str
    contract: Contract
    environment: Environment
    outcome: AuditOutcome
    performance: Performance | None = None
    measurement: Measurement | None = None
    workloads: tuple[WorkloadTiming, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verified, or what went wrong."""
        return self.outcome.verdict

    @property
    def verified(self) -> bool:
        """Whether every check passed and every workload was measured."""
        return self.outcome.verdict is found.Correctness.VERIFIED

    @property
    def evidence(self) -> str:
        """What a person needs to believe the verdict."""
        return self.outcome.evidence

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """Each kind of check with its number of cases."""
        return self.outcome.checks

    @property
    def ratios(self) -> Mapping[str, float]:
        """Candidate over incumbent, by workload; empty unless verified."""
        return {item.workload: item.incumbent_ratio for item in self.workloads}

    @property
    def speedup_ratio(self) -> float | None:
        """Root over candidate by weighted latency; None unless verified and timed beside the root."""
        if self.measurement is None:
            return None
        if self.incumbent == found.ROOT:
            return 1 / self.measurement.ratio
        return self.measurement.speedup_ratio


def audit(
    operator: str,
    sources: Sources | str | Path,
    *,
    target: str = "cpu",
    incumbent: Sources | str | Path | None = None,
    harness: HarnessFactory = native_harness,
    unsafe_no_sandbox: bool = False,
    seed: int = 0,
) -> AuditReport:
    """Build, check and time sources against an operator's root; nothing is kept.

    `operator` is a packaged operator's name or a folder with an operator.toml. `sources` is a folder, one file, or
    texts by file name. `incumbent` names other sources to be faster than: they are timed, not checked. Where no
    sandbox works the verdict is `sandbox_refused`, unless `unsafe_no_sandbox`. `seed` is the bootstrap's.

    Raises SourcesMissing, OperatorError, MissingToolchain, KernelbraidError (no such target).
    """
    declared = load_operator(operator, target)
    require_target(declared, target)
    candidate = Candidate(found.CANDIDATE, sources_at(sources, target))
    root = Candidate(found.ROOT, declared.root_sources(target))
    best = root if incumbent is None else Candidate(_label(incumbent), sources_at(incumbent, target))
    with harness(declared, target) as running:
        environment = environment_of(running.environment())
        contract = declared_contract(declared, target, environment)
        if environment.sandbox == SANDBOX_NONE and not unsafe_no_sandbox:
            outcome = _refused()
        else:
            outcome = _audited(running, candidate, root, best)
    return _judged(AuditReport(declared.name, target, best.name, contract, environment, outcome), seed)


def sources_at(named: Sources | str | Path, target: str) -> Sources:
    """The texts by file name of a folder or one file. Raises SourcesMissing, and OperatorError for what is no text."""
    if isinstance(named, Mapping):
        return named
    path = Path(named)
    if path.is_file():
        return MappingProxyType({path.name: _text(path)})
    if not path.is_dir():
        raise SourcesMissing(f"there is no file or folder {path}")
    suffixes = SOURCE_SUFFIXES[target]
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in suffixes)
    if not files:
        raise SourcesMissing(f"{path} holds no source of target {target}: files ending in {', '.join(suffixes)}")
    return MappingProxyType({file.name: _text(file) for file in files})


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"cannot read {path} as a source: {error}") from error


def _label(incumbent: Sources | str | Path) -> str:
    return found.INCUMBENT if isinstance(incumbent, Mapping) else str(incumbent)


def _refused() -> AuditOutcome:
    evidence = "no sandbox works here, and sources from outside run in one only: `kernelbraid doctor` says what lacks"
    return AuditOutcome(found.Infrastructure.SANDBOX_REFUSED, evidence)


def _audited(running: Auditing, candidate: Candidate, root: Candidate, incumbent: Candidate) -> AuditOutcome:
    """The audit, once more where the machine failed and not the candidate."""
    for _ in range(INFRASTRUCTURE_RETRIES):
        outcome = running.audit(candidate, root, lambda: incumbent)
        if not isinstance(outcome.verdict, found.Infrastructure):
            return outcome
    return running.audit(candidate, root, lambda: incumbent)


def _judged(report: AuditReport, seed: int) -> AuditReport:
    if not report.verified:
        return report
    outcome = report.outcome
    blocks = [part for part in (outcome.screen, outcome.confirmation) if part is not None]
    performance, measurement = judge(
        report.contract,
        incumbent=report.incumbent,
        blocks=[part.to_bytes() for part in blocks],
        confirmed=outcome.confirmation is not None,
        confirmation=CONFIRMATION,
        seed=bootstrap_seed(seed, found.CANDIDATE),
    )
    workloads = workload_timings(report.contract, blocks[-1], beside_root=report.incumbent == found.ROOT)
    return replace(report, performance=performance, measurement=measurement, workloads=workloads)


def workload_timings(contract: Contract, blocks: Blocks, *, beside_root: bool) -> tuple[WorkloadTiming, ...]:
    """Every workload's row; `beside_root` says that the incumbent is the root, whose paired samples then count."""
    if beside_root:
        arms = {**blocks.samples_ns, found.ROOT: blocks.samples_ns[found.INCUMBENT]}
        blocks = replace(blocks, samples_ns=MappingProxyType(arms))
    limits = {item.name: item.limit_ratio for item in contract.workloads}
    rooted = found.ROOT in blocks.arms
    bounds = {item.workload: item for item in statistics.limit_bounds(blocks, limits)} if rooted else {}
    medians = {arm: blocks.medians_s(arm) for arm in blocks.arms}
    ratios = statistics.workload_ratios(blocks)
    return tuple(
        WorkloadTiming(
            workload=item.name,
            path=item.path,
            weight=item.weight,
            limit_ratio=item.limit_ratio,
            candidate_s=medians[found.CANDIDATE][item.name],
            incumbent_s=medians[found.INCUMBENT][item.name],
            incumbent_ratio=ratios[item.name],
            root_s=medians[found.ROOT][item.name] if rooted else None,
            ratio=bounds[item.name].ratio if rooted else None,
            upper_bound_ratio=bounds[item.name].upper_bound_ratio if rooted and blocks.groups > 1 else None,
        )
        for item in contract.workloads
    )
