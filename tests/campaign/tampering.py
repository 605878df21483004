"""Logs whose blocks somebody edits, hashing everything anew: what is found then is found by recomputation alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from kernelbraid.agents.evidence_check import recheck
from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.blobs import digest_of, named_blobs
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.chain import Problem
from kernelbraid.events.event import Recorded
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT as ROOT_ID
from kernelbraid.kernels.audit.outcome import Blocks

Edit = Callable[[Blocks], Blocks]


def edited(arm: str, ns: int, at: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Edit:
    """One sample of an arm replaced by so many nanoseconds."""

    def edit(blocks: Blocks) -> Blocks:
        samples = {name: np.array(values) for name, values in blocks.samples_ns.items()}
        samples[arm][at] = ns
        return replace(blocks, samples_ns=MappingProxyType(samples))

    return edit


class Held:
    """A log in memory, with one event and the blob that it cites exchanged."""

    def __init__(self, events: list[Recorded], blobs: dict[str, bytes]) -> None:
        self.events, self.blobs = events, blobs

    @classmethod
    def of(cls, store: Store, campaign: str) -> "Held":
        """A campaign of a store."""
        events = list(store.read(campaign))
        return cls(events, {digest: store.blob(digest) for item in events for digest in named_blobs(item.event)})

    def read(self, campaign: str) -> Iterator[Recorded]:
        """The campaign's events."""
        return iter(self.events)

    def blob(self, digest: str) -> bytes:
        """A blob's bytes."""
        return self.blobs[digest]

    def with_blocks(self, position: int, digest: str, edit: Edit) -> "Held":
        """Edited blocks under their own right digest, cited where the old ones were."""
        stored = edit(Blocks.from_bytes(self.blobs[digest])).to_bytes()
        new = digest_of(stored)

        def cited(blocks: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new if item == digest else item for item in blocks)

        def change(event: Any) -> Any:
            if isinstance(event, RootQualified):
                return event.model_copy(update={"blocks": cited(event.blocks)})
            measurement = event.measurement.model_copy(update={"blocks": cited(event.measurement.blocks)})
            return event.model_copy(update={"measurement": measurement})

        return Held(self._changed(position, change), {**self.blobs, new: stored})

    def without_sessions(self, position: int) -> "Held":
        """An event as it was before figures of timing sessions were recorded."""
        return Held(self._changed(position, lambda event: event.model_copy(update={"sessions": None})), self.blobs)

    def without_screen(self, position: int) -> "Held":
        """A confirmed candidate's event that cites its confirmation alone."""

        def change(event: Any) -> Any:
            measurement = event.measurement.model_copy(update={"blocks": event.measurement.blocks[1:]})
            return event.model_copy(update={"measurement": measurement, "sessions": event.sessions[1:]})

        return Held(self._changed(position, change), self.blobs)

    def _changed(self, position: int, change: Callable[[Any], Any]) -> list[Recorded]:
        return [item._replace(event=change(item.event)) if item.position == position else item for item in self.events]

    def timed(self) -> list[tuple[int, str, str]]:
        """Position, implementation and digest of every stretch of blocks that an event cites."""
        found = []
        for position, _, event in ((item.position, item.actor, item.event) for item in self.events):
            if isinstance(event, RootQualified):
                found += [(position, ROOT_ID, digest) for digest in event.blocks]
            elif isinstance(event, AuditCompleted | TimingCompleted) and event.measurement is not None:
                found += [(position, event.implementation, digest) for digest in event.measurement.blocks]
        return found

    def problems(self) -> tuple[Problem, ...]:
        """What recomputation finds."""
        return recheck(cast(Store, self), "held")
