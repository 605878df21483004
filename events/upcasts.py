"""Old schema versions made new: pure functions on a payload, applied on every read and never written back.

An event's hash covers its stored bytes, so an upcast never breaks the chain.
"""

from collections.abc import Callable, Mapping

from kernelbraid.events.errors import EventInvalid

Payload = dict[str, object]
Upcast = Callable[[Payload], Payload]


def _audit_time_by_stage(payload: Payload) -> Payload:
    """Version 1 kept one duration for a whole audit; all of it counts as timing, where most of it went."""
    elapsed_s = payload.pop("elapsed_s")
    return {**payload, "build_s": 0.0, "check_s": 0.0, "timing_s": elapsed_s}


UPCASTS: dict[tuple[str, int], Upcast] = {("AuditCompleted", 1): _audit_time_by_stage}
"""(type name, version) to the function that turns that version's payload into the next version's."""


def upcast(name: str, payload: Payload, version: int, today: int, table: Mapping[tuple[str, int], Upcast]) -> Payload:
    """The payload of `name` at version `today`, one version after another. Raises EventInvalid where a step lacks."""
    if version > today:
        raise EventInvalid(f"{name} has schema version {version}, this kernelbraid knows {today}: install a newer one")
    for step in range(version, today):
        function = table.get((name, step))
        if function is None:
            raise EventInvalid(f"no upcast leads {name} from schema version {step} to {step + 1}")
        payload = function(dict(payload))
    return payload
