"""Events of paid effects: model calls. A request reserves budget and uses its attempt number up."""

from typing import Literal

from pydantic import Field

from kernelbraid.events.event import Actor, Event


class ModelRequested(Event):
    """A model is about to be called."""

    request: str
    agent: Actor
    action: str | None
    model: str
    prompt: str
    attempt: int = Field(ge=1)
    reserved_tokens: int = Field(ge=0)
    reserved_usd: float = Field(ge=0)


class ModelCalled(Event):
    """The call ended, one way or another; the reply is a blob."""

    request: str
    agent: Actor
    model: str
    reply: str | None
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cost_usd: float = Field(ge=0)
    elapsed_s: float = Field(ge=0)
    attempt: int = Field(ge=1)
    outcome: Literal["answered", "refused", "rate_limited", "timed_out", "failed"]
