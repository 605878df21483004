"""Figures as a person reads them; what is stored stays in seconds, bytes and ratios."""

_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def seconds(value_s: float | None) -> str:
    """A duration with three significant digits, such as `1.24 ms`."""
    if value_s is None:
        return "-"
    if value_s >= 120:
        return f"{int(value_s) // 60} min {int(value_s) % 60} s"
    scale, unit = next(((scale, unit) for scale, unit in _STEPS if value_s >= scale), (1e-9, "ns"))
    return f"{value_s / scale:.3g} {unit}"


def times(ratio: float | None) -> str:
    """How many times faster, such as `4.31x`."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def size(value_bytes: float) -> str:
    """A size in decimal units, such as `18.2 MB`."""
    for unit in ("B", "kB", "MB"):
        if value_bytes < 1000:
            return f"{value_bytes:.3g} {unit}"
        value_bytes /= 1000
    return f"{value_bytes:.3g} GB"


def bar(share_ratio: float, cells: int, unicode: bool) -> str:
    """A bar of so many cells, filled to the share."""
    filled = round(max(0.0, min(1.0, share_ratio)) * cells)
    full, empty = ("█", "░") if unicode else ("#", ".")
    return full * filled + empty * (cells - filled)


def plain(text: str, columns: int | None = None, *, keep_spaces: bool = False) -> str:
    """Text from outside on one line: no control signs, so that it cannot steer a terminal; cut to so many columns."""
    flat = "".join(sign if sign.isprintable() else " " for sign in text)
    if not keep_spaces:
        flat = " ".join(flat.split())
    return flat if columns is None or len(flat) <= columns else flat[: columns - 3] + "..."
