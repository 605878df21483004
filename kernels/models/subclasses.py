"""A module's forward replaced by way of its class, so that parameters, hooks and state dictionaries stay."""

from collections.abc import Callable
from typing import Any

import torch

_classes: dict[tuple[type, Callable[..., Any]], type] = {}


def become(module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """Make a module of class C one of a subclass of C with this forward. Doing it again changes nothing."""
    kind = type(module)
    if getattr(kind, "forward", None) is not forward:
        made = type(f"Unified{kind.__name__}", (kind,), {"forward": forward, "__module__": __name__})
        module.__class__ = _classes.setdefault((kind, forward), made)
