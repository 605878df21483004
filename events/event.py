"""What every event has in common: a frozen payload, and the envelope it is recorded in."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

Actor = Literal["planner", "editor", "auditor", "brancher", "driver", "user"]


class Value(BaseModel):
    """A frozen value inside an event: no unknown fields, no NaN, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Event(Value):
    """A payload: a fact in the past tense. `version` is its schema version."""

    version: ClassVar[int] = 1
    operational: ClassVar[bool] = False
    """Operational events (pauses, resumes, notes) say how a campaign was run, not what was found."""


class Recorded(NamedTuple):
    """An event in its place.

    `cause` is the position that led to it (0: none). `batch` is (index from 1, size) within the append that
    stored it. Positions count from 1 within a campaign. A tuple, because one is made for every event ever read, and
    a frozen dataclass takes ten times as long to make.
    """

    campaign: str
    position: int
    recorded_at: datetime
    actor: Actor
    cause: int
    batch: tuple[int, int]
    event: Event


@dataclass(frozen=True, slots=True)
class Decision:
    """What one actor decided at once: the events of one append and the blobs they name."""

    actor: Actor
    cause: int
    events: tuple[Event, ...]
    blobs: tuple[bytes, ...] = ()
