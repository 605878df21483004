"""Named regions of a source: where a mechanism may edit, and what changed between two implementations.

A region stands between `// region NAME` and `// endregion NAME`, each on a line of its own; in Python `# region NAME`
and `# endregion NAME`. What stands outside every region is the region FRAME, shared by both paths.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import chain

from kernelbraid.kernels.operators.operator import Sources

FRAME = "frame"
_MARKER = re.compile(r"^[ \t]*(?://|#) (?:end)?region \w+$", re.MULTILINE)
_REGION = re.compile(r"^[ \t]*(?://|#) region (\w+)\n(.*?)^[ \t]*(?://|#) endregion \1\n", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """An edit found no place, or more than one, where it expected exactly one."""


def regions(sources: Sources) -> Mapping[str, str]:
    """Region name to text over all files; FRAME holds the rest, file names included.

    Raises Refused when a name stands twice, or a marker without its pair or inside another region.
    """
    found: dict[str, str] = {}
    frame: list[str] = []
    for name, text in sorted(sources.items()):
        for stray in (*_MARKER.finditer(_REGION.sub("", text)), *_inner_markers(text)):
            raise Refused(f"{name}: the marker {stray[0].strip()!r} has no pair of its own")
        for match in _REGION.finditer(text):
            if match[1] in found or match[1] == FRAME:
                raise Refused(f"region {match[1]} stands twice")
            found[match[1]] = match[2]
        frame.append(f"{name}\n{_REGION.sub(lambda match: f'// region {match[1]}' + chr(10), text)}")
    return {**found, FRAME: "\n".join(frame)}


def _inner_markers(text: str) -> Iterator[re.Match[str]]:
    return chain.from_iterable(_MARKER.finditer(match[2]) for match in _REGION.finditer(text))


def region_digests(sources: Sources) -> Mapping[str, str]:
    """Region name to the SHA-256 of its text."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in regions(sources).items()}


def region(sources: Sources, name: str) -> str:
    """The text of one region. Raises Refused when it is not there."""
    found = regions(sources)
    if name not in found:
        raise Refused(f"no region {name}")
    return found[name]


def replace_region(sources: Sources, name: str, text: str) -> Sources:
    """The sources with one region's text replaced. Raises Refused when it is not there."""
    region(sources, name)
    body = text if text.endswith("\n") or not text else text + "\n"

    def swap(match: re.Match[str]) -> str:
        if match[1] != name:
            return match[0]
        start, end = match.start(2) - match.start(), match.end(2) - match.start()
        return match[0][:start] + body + match[0][end:]

    return {file: _REGION.sub(swap, content) for file, content in sources.items()}


def edit_region(sources: Sources, name: str, old: str, new: str) -> Sources:
    """The sources with `old`, which must stand exactly once in the region, replaced by `new`.

    Raises Refused otherwise, so that an edit never lands where its author did not mean it.
    """
    text = region(sources, name)
    if not old.strip():
        raise Refused(f"region {name}: nothing to find was given")
    if (count := text.count(old)) != 1:
        raise Refused(f"region {name}: expected one {old.strip().splitlines()[0]!r}, found {count}")
    return replace_region(sources, name, text.replace(old, new))
