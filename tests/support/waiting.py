"""Waiting without sleeping: poll for a breaker, with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(breaker: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """The first true value of the breaker.

    Raises:
        AssertionError: it stayed false.
    """
    deadline = time.monotonic() + within
    while True:
        value = breaker()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come within {within} s"
        time.sleep(0.02)


async def until_async(breaker: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """The same on an event loop."""
    deadline = time.monotonic() + within
    while True:
        value = breaker()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come within {within} s"
        await asyncio.sleep(0.02)
