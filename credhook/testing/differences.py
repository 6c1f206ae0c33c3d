"""How two values differ, in words that name places and numbers and never a value: values may be claims. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

#: Differences that are worth reading at once.
_MOST: Final = 5


def differences(expected: object, found: object) -> str:
    """What is different in `found`, in one line; empty if they are equal."""
    if expected == found:
        return ""
    every = list(_differ(expected, found, "")) or ["the values differ"]
    rest = [f"and {len(every) - _MOST} more"] if len(every) > _MOST else []
    return "; ".join([*every[:_MOST], *rest])


def _differ(expected: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        yield from _mappings(expected, found, place)
    elif _are_lists(expected, found):
        yield from _lists(expected, found, place)
    elif isinstance(expected, set | frozenset) and isinstance(found, set | frozenset):
        lacking, excess = len(expected - found), len(found - expected)
        yield f"{place or 'the whole'} lacks {lacking} and has {excess} that should not be there"
    elif type(expected) is type(found):
        yield f"{place or 'the whole'} has another value"
    else:
        yield f"{place or 'the whole'} is {type(found).__name__} instead of {type(expected).__name__}"


def _mappings(expected: Mapping[Any, Any], found: Mapping[Any, Any], place: str) -> Iterator[str]:
    for key in dict.fromkeys([*expected, *found]):
        inner = f"{place}.{key}" if place else str(key)
        if key not in found:
            yield f"{inner} is missing"
        elif key not in expected:
            yield f"{inner} should not be there"
        elif expected[key] != found[key]:
            yield from _differ(expected[key], found[key], inner)


def _lists(expected: Sequence[Any], found: Sequence[Any], place: str) -> Iterator[str]:
    if len(expected) != len(found):
        yield f"{place or 'the whole'} has {_counted(found)} instead of {_counted(expected)}"
        return
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one != other:
            yield from _differ(one, other, f"{place}[{index}]")


def _are_lists(*values: object) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str | bytes) for value in values)


def _counted(entries: Sequence[object]) -> str:
    """How many there are, and how many of them repeat another."""
    total = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    repeated = sum(any(one == other for other in entries[:place]) for place, one in enumerate(entries))
    return f"{total} ({repeated} repeated)" if repeated else total
