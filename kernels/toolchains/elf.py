"""Section sizes of a 64-bit little-endian ELF file, read without any tool."""

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def section_bytes(image: bytes) -> dict[str, int]:
    """Section name to size in bytes; empty when the image is no such ELF file."""
    if len(image) < _HEADER.size or image[:6] != b"\x7fELF\x02\x01":
        return {}
    fields = _HEADER.unpack_from(image)
    offset, entry_bytes, count, names_index = fields[6], fields[11], fields[12], fields[13]
    try:
        sections = [_SECTION.unpack_from(image, offset + entry_bytes * index) for index in range(count)]
        names_offset = sections[names_index][4]
        return {_name(image, names_offset + section[0]): section[5] for section in sections}
    except (struct.error, IndexError, OverflowError, ValueError):
        return {}


def _name(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode("ascii", errors="replace")
