"""Mechanisms: small rewrites of an operator's actual source, each with what it needs and what it risks.

An operator's `<target>/catalogue.py` defines `CATALOGUE: tuple[Mechanism, ...]`. A mechanism knows nothing of a
campaign; it is told the facts about a parent and answers with evidence, or with nothing.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Literal, TypeVar

from kernelbraid.kernels.operators.cases import described, load_module
from kernelbraid.kernels.operators.operator import Operator, OperatorError, Sources
from kernelbraid.kernels.operators.regions import Refused

A = TypeVar("A")
B = TypeVar("B")
Scope = Literal["full", "decode", "joint"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one verified parent: the ground on which a mechanism is raised or passed over."""

    applied: frozenset[str]
    """Mechanisms already in the parent."""
    share_ratio: Mapping[str, float]
    """Part of the weighted latency by path ("full", "decode") and by dtype ("float32", "bfloat16")."""
    resources: Mapping[str, float]
    """Measured facts of the parent's artifact, such as text_bytes or stack_bytes; empty where unknown."""
    simd_bits: int
    """Widest vector register of the machine."""
    l1_bytes: int
    """First-level data cache of one core."""


Evidence = Callable[[Facts], str | None]
WORTH_A_TRY_RATIO = 0.1


def always(reason: str) -> Evidence:
    """Evidence that holds for any parent."""

    def evidence(facts: Facts) -> str | None:
        return reason

    return evidence


def share_of(key: str, reason: str) -> Evidence:
    """Evidence where a path or a dtype has a share of the weighted latency that is worth a try."""

    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One rewrite. `expected_gain_ratio` is old latency over new on the paths in its scope, as tried."""

    name: str
    scope: Scope
    summary: str
    rationale: str
    numerical_risks: str
    falsification: str
    expected_gain_ratio: float
    edit: Callable[[Sources], Sources]
    evidence: Evidence
    contract: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Each item is one mechanism's name, or several joined by "|" of which one is enough."""
    excludes: tuple[str, ...] = ()
    opened_by: tuple[str, ...] = ()
    """Mechanisms whose arrival in a parent opens this one once more after it was falsified."""

    def fits(self, applied: Iterable[str]) -> bool:
        """Whether its preconditions hold for a parent with these mechanisms."""
        have = set(applied)
        met = all(have & set(item.split("|")) for item in self.requires)
        return met and self.name not in have and not have & set(self.excludes)


def load_catalogue(operator: Operator, target: str) -> tuple[Mechanism, ...]:
    """The operator's mechanisms for a target, in the catalogue's order. Raises OperatorError.

    What their functions raise, but for Refused, is an OperatorError too, which names file and mechanism.
    """
    path = operator.folder / target / "catalogue.py"
    found = getattr(load_module(path), "CATALOGUE", None)
    if not isinstance(found, tuple | list) or not all(isinstance(item, Mechanism) for item in found):
        raise OperatorError(f"{path} must define CATALOGUE, a tuple of Mechanism")
    return tuple(
        replace(
            item, edit=_named(path, item, "edit", item.edit), evidence=_named(path, item, "evidence", item.evidence)
        )
        for item in found
    )


def _named(path: Path, mechanism: Mechanism, role: str, function: Callable[[A], B]) -> Callable[[A], B]:
    """The function, its faults told by the file and the mechanism that must be mended."""

    @wraps(function)
    def called(argument: A) -> B:
        try:
            return function(argument)
        except Refused:
            raise
        except Exception as error:
            what = f"{path}: {role} of the mechanism {mechanism.name} failed"
            raise OperatorError(f"{what}: {described(error)}; mend it, then resume the campaign") from error

    return called


def apply(mechanisms: Iterable[Mechanism], sources: Sources) -> Sources:
    """The sources after every mechanism in turn. Raises Refused, naming the one that did not fit."""
    for mechanism in mechanisms:
        try:
            edited = mechanism.edit(sources)
        except Refused as error:
            raise Refused(f"{mechanism.name}: {error}") from error
        if edited == sources:
            raise Refused(f"{mechanism.name}: it changed nothing")
        sources = edited
    return sources


def catalogue_digest(operator: Operator, target: str) -> str:
    """SHA-256 over the target's Python files by name: changes when any mechanism does, wherever it is written."""
    files = sorted((operator.folder / target).glob("*.py"))
    parts = [hashlib.sha256(file.read_bytes()).hexdigest() + file.name for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
