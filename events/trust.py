"""Payloads taken on trust: the events that validation would make of them, made without looking at what they say.

Where two processes read the same rows, one of them may validate each payload for both: half of what reading a log
costs is validation. `maker` is for the other one. It is driven by the event types' own annotations, so that no second
description of an event exists, and gives the same event as validation for every payload that validation accepts.
"""

from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from kernelbraid.events.event import Value

V = TypeVar("V", bound=Value)
Convert = Callable[[Any], Any]

_AS_THEY_ARE = (str, int, bool)


def maker(kind: type[V]) -> Callable[[dict[str, Any]], V]:
    """What makes a value of a parsed payload, which it keeps and changes. Raises LookupError, TypeError, ValueError."""
    conversions = [(name, _conversion(field.annotation)) for name, field in kind.model_fields.items()]
    steps = [(name, convert) for name, convert in conversions if convert is not None]
    names = set(kind.model_fields)
    count, new, put = len(names), object.__new__, object.__setattr__

    def make(content: dict[str, Any]) -> V:
        if len(content) != count:  # an older payload, which has to get its defaults
            return kind.model_validate(content)
        for name, convert in steps:
            content[name] = convert(content[name])
        value = new(kind)
        put(value, "__dict__", content)
        put(value, "__pydantic_fields_set__", names)
        put(value, "__pydantic_extra__", None)
        put(value, "__pydantic_private__", None)
        return value

    return make


def _conversion(annotation: Any) -> Convert | None:
    """What turns JSON's form of an annotated type into Python's; None where they are the same."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _AS_THEY_ARE or origin is Literal:
        return None
    if annotation is float:  # JSON may hold 1 for 1.0
        return float
    if origin is Annotated:
        return _conversion(arguments[0])
    if origin is tuple:
        return _to_tuple(_conversion(arguments[0]))
    if origin is dict:
        return _to_dict(_conversion(arguments[1]))
    if origin in (UnionType, Union):
        return _to_union([argument for argument in arguments if argument is not NoneType], NoneType in arguments)
    if issubclass(annotation, Enum):
        return _to_enum([annotation])
    if issubclass(annotation, Value):
        return maker(annotation)
    raise TypeError(f"no payload of an event is known to hold a {annotation}")


def _to_tuple(convert: Convert | None) -> Convert:
    return tuple if convert is None else lambda items: tuple(map(convert, items))


def _to_dict(convert: Convert | None) -> Convert | None:
    if convert is float:  # seldom anything to do, and there are dozens of numbers in an audit
        return lambda items: {k: float(v) for k, v in items.items()} if int in map(type, items.values()) else items
    return None if convert is None else lambda items: {key: convert(value) for key, value in items.items()}


def _to_union(members: list[Any], optional: bool) -> Convert | None:
    if all(isinstance(member, type) and issubclass(member, Enum) for member in members):
        return _to_enum(members, optional)
    (member,) = members
    convert = _conversion(member)
    if convert is None or not optional:
        return convert
    return lambda content: None if content is None else convert(content)


def _to_enum(kinds: list[type[Enum]], optional: bool = False) -> Convert:
    """The first enumeration that has the value, as validation chooses."""
    by_value: dict[Any, Any] = {member.value: member for kind in reversed(kinds) for member in kind}
    return ({None: None} | by_value if optional else by_value).__getitem__
