"""A mechanism for any Triton kernel: launched while the kernel before it still runs, and waiting for its results.

Between two kernels of a stream a device starts nothing for about a microsecond. With programmatic dependent launch
(sm_90) the blocks of the next one are in place by then; `gdc_wait` holds them until the kernel before has ended and
its stores can be seen, so that no kernel reads or writes anything early.
"""

import ast
from collections.abc import Iterator
from functools import partial

from kernelbraid.kernels.operators.catalogue import Evidence, Mechanism, Scope, always, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, region, replace_region

WAIT = "    tl.extra.cuda.gdc_launch_dependents()\n    tl.extra.cuda.gdc_wait()\n"
WHY = "its kernels are short, and the time between two of them is not used"


def overlapped(names: tuple[str, ...], sources: Sources) -> Sources:
    """Every kernel that these regions launch waits where it begins, and each of its launches does not.

    Raises Refused where they launch none, one that stands elsewhere or waits already, or one without num_warps.
    """
    texts = {name: region(sources, name) for name in names}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    kernels = {kernel for tree in trees.values() for kernel, _ in _launches(tree)}
    defined = {node.name for tree in trees.values() for node in _functions(tree)}
    if not kernels or not kernels <= defined or any("gdc_wait" in text for text in texts.values()):
        raise Refused(f"region {', '.join(names)}: no kernel of its own is launched that does not wait yet")
    for name, tree in trees.items():
        sources = replace_region(sources, name, _edited(texts[name], tree, kernels))
    return sources


def _edited(text: str, tree: ast.Module, kernels: set[str]) -> str:
    """The docstring of each kernel is followed by the wait; each launch has one option more."""
    inserts = [(_end(text, node.body[0]), WAIT) for node in _functions(tree) if node.name in kernels]
    inserts += [(_start(text, option), "launch_pdl=True, ") for _, option in _launches(tree)]
    for place, what in sorted(inserts, reverse=True):
        text = text[:place] + what + text[place:]
    return text


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _launches(tree: ast.Module) -> Iterator[tuple[str, ast.keyword]]:
    """The kernel's name and the option num_warps of each launch."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kernel)), keywords=options):
                yield from ((kernel, option) for option in options if option.arg == "num_warps")


def _start(text: str, node: ast.keyword) -> int:
    return sum(map(len, text.splitlines(keepends=True)[: node.lineno - 1])) + node.col_offset


def _end(text: str, node: ast.stmt) -> int:
    return sum(map(len, text.splitlines(keepends=True)[: node.end_lineno]))


def overlapped_path(path: EntryPath) -> Mechanism:
    """Of one path, whose region has the path's name."""
    return _mechanism(f"{path}_overlapped", path, (path,), share_of(path, WHY))


def overlapped_jointly(*names: str) -> Mechanism:
    """Of both paths, which launch kernels of a region that they share."""
    return _mechanism("overlapped", "joint", names, always(WHY))


def _mechanism(name: str, scope: Scope, names: tuple[str, ...], evidence: Evidence) -> Mechanism:
    return Mechanism(
        name=name,
        scope=scope,
        summary="launched before the kernel ahead of it has ended, and waiting for that where it begins",
        rationale="Between two kernels the device starts nothing for about a microsecond, which is half of a short "
        "one's time: blocks that wait in place begin at once.",
        numerical_risks="None: nothing is read or written before the kernel ahead has ended.",
        falsification="No lower latency, as when what runs ahead does not let the next one start.",
        expected_gain_ratio=1.2,
        edit=partial(overlapped, names),
        evidence=evidence,
    )
