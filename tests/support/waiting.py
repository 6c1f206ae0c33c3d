"""Waiting without sleeping: poll a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """Return the first true value of a condition.

    Raises:
        AssertionError: it stayed false.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {within} s"
        time.sleep(0.02)
    return value


async def until_async(condition: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """Do the same on an event loop."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {within} s"
        await asyncio.sleep(0.02)
    return value
