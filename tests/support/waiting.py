"""Waiting without sleeping: poll a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def _pause(began: float) -> float:
    """Return the seconds until the next look: some looks cost a request, and most of a long wait need not be so."""
    return min(0.25, max(0.02, (time.monotonic() - began) / 5))


def until(condition: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """Return the first true value of a condition.

    Raises:
        AssertionError: it stayed false.
    """
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < began + within, f"{what} did not come within {within} s"
        time.sleep(_pause(began))
    return value


async def until_async(condition: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """Do the same on an event loop."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() < began + within, f"{what} did not come within {within} s"
        await asyncio.sleep(_pause(began))
    return value
