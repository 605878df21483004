"""A mechanism for any Triton kernel: launched while the kernel before it still runs, and waiting for its results.

Between two kernels of a stream a device starts nothing for about a microsecond. With programmatic dependent launch
(sm_90) the blocks of the next one are in place by then; `gdc_wait` holds them until the kernel before has ended and
its stores can be seen, so that no kernel reads or writes anything early.
"""

import ast
from collections.abc import Iterator
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, region, replace_region

WAIT = "    tl.extra.cuda.gdc_launch_dependents()\n    tl.extra.cuda.gdc_wait()\n"


def overlapped(name: str, sources: Sources) -> Sources:
    """Every kernel that the region launches waits where it begins, and each of its launches does not.

    Raises Refused where the region launches none of its own, one without a docstring, or one without num_warps.
    """
    text = region(sources, name)
    tree = ast.parse(text)
    launches = list(_launches(tree))
    kernels = {kernel for kernel, _ in launches}
    bodies = [node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in kernels]
    if not launches or len(bodies) < len(kernels) or "gdc_wait" in text:
        raise Refused(f"region {name}: it launches no kernel of its own that does not wait yet")
    inserts = [(_line_after(text, body[0]), WAIT) for body in bodies]
    inserts += [(_place(text, launch), "launch_pdl=True, ") for _, launch in launches]
    for place, what in sorted(inserts, reverse=True):
        text = text[:place] + what + text[place:]
    return replace_region(sources, name, text)


def _launches(tree: ast.Module) -> Iterator[tuple[str, ast.keyword]]:
    """The kernel's name and the option num_warps of each launch."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=kernel)), keywords=options):
                yield from ((kernel, option) for option in options if option.arg == "num_warps")


def _place(text: str, node: ast.keyword) -> int:
    return sum(map(len, text.splitlines(keepends=True)[: node.lineno - 1])) + node.col_offset


def _line_after(text: str, node: ast.stmt) -> int:
    return sum(map(len, text.splitlines(keepends=True)[: node.end_lineno]))


def overlapped_mechanism(path: EntryPath) -> Mechanism:
    """Of one path, whose region has the path's name."""
    return Mechanism(
        name=f"{path}_overlapped",
        scope=path,
        summary="launched before the kernel ahead of it has ended, and waiting for that where it begins",
        rationale="Between two kernels the device starts nothing for about a microsecond, which is half of a short "
        "one's time: blocks that wait in place begin at once.",
        numerical_risks="None: nothing is read or written before the kernel ahead has ended.",
        falsification="No lower latency on this path, as when what runs ahead does not let the next one start.",
        expected_gain_ratio=1.2,
        edit=partial(overlapped, path),
        evidence=share_of(path, "its kernels are short, and the time between two of them is not used"),
    )
