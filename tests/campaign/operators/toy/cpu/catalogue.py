"""Mechanisms of the toy operator. Each leaves its mark in the source, by which a test's latency model knows it.

The story they make: `lanes` wins; `pack` loses and opens `prefetch`, which wins; `full_tile` and `decode_split` are
siblings that merge; `wide` brings nothing until `tree` opens it; `unroll` brings nothing anywhere; `decode_cache`
gains on too small a share to be promoted; `stream` fails its audit; `careless` breaks the scope that it declares.
"""

from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism, Scope
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import region, replace_region


def _mark(name: str, place: str, sources: Sources) -> Sources:
    return replace_region(sources, place, f"/* {name} */\n" + region(sources, place))


def _evidence(name: str, facts: Facts) -> str | None:
    return f"{len(facts.applied)} mechanisms are in the parent, and {name} is not"


def _mechanism(
    name: str,
    scope: Scope,
    gain_ratio: float,
    *,
    place: str = "",
    requires: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
    opened_by: tuple[str, ...] = (),
) -> Mechanism:
    place = place or ("element" if scope == "joint" else scope)
    return Mechanism(
        name=name,
        scope=scope,
        summary=f"mark {place} with {name}",
        rationale=f"{name} does less work",
        numerical_risks="none: the bits stay as they are",
        falsification=f"no gain from {name}",
        expected_gain_ratio=gain_ratio,
        edit=partial(_mark, name, place),
        evidence=partial(_evidence, name),
        contract=("order",) if scope == "joint" else (),
        requires=requires,
        excludes=excludes,
        opened_by=opened_by,
    )


CATALOGUE = (
    _mechanism("lanes", "joint", 1.8),
    _mechanism("tree", "joint", 1.08, requires=("lanes",)),
    _mechanism("pack", "joint", 1.02, requires=("lanes",)),
    _mechanism("prefetch", "joint", 1.15, requires=("pack",)),
    _mechanism("full_tile", "full", 1.4, requires=("lanes",)),
    _mechanism("decode_split", "decode", 1.35, requires=("lanes",)),
    _mechanism("decode_cache", "decode", 1.5, requires=("decode_split",)),
    _mechanism("wide", "joint", 1.3, requires=("lanes",), opened_by=("tree",)),
    _mechanism("unroll", "joint", 1.1, opened_by=("lanes", "pack")),
    _mechanism("stream", "full", 1.1, requires=("lanes",), excludes=("pack",)),
    _mechanism("careless", "full", 1.01, place="element"),
)
