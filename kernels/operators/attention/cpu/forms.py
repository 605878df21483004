"""Edits that several mechanisms share."""

from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region


def swap_region(sources: Sources, name: str, old: str, new: str) -> Sources:
    """The region, which must read `old`, now reads `new`. Raises Refused otherwise."""
    if region(sources, name) != old:
        raise Refused(f"region {name} is not in the form this rewrite knows")
    return replace_region(sources, name, new)


def rows_in_lanes(sources: Sources, part: str) -> Sources:
    """A tile's keys or values (`part` is "key" or "value") read LANES elements at a time, unpacked or not."""
    edited = edit_region(sources, "tile", f"INLINE float {part}_of(", f"INLINE lanes {part}s_of(")
    place = f"tile.{part}s, key * tile.stride + d"
    unpacked = f"return tile.{part}s[key * tile.stride + d];"
    if unpacked in region(edited, "tile"):
        return edit_region(edited, "tile", unpacked, f"return load_lanes({place}, F32);")
    return edit_region(edited, "tile", f"element({place}, tile.dtype)", f"load_lanes({place}, tile.dtype)")


def rows_unpacked(sources: Sources, part: str) -> Sources:
    """A tile's keys or values read as float32, in lanes or not."""
    place = f"tile.{part}s, key * tile.stride + d"
    if f"load_lanes({place}, tile.dtype)" in region(sources, "tile"):
        return edit_region(sources, "tile", f"{place}, tile.dtype", f"{place}, F32")
    return edit_region(sources, "tile", f"element({place}, tile.dtype)", f"tile.{part}s[key * tile.stride + d]")
