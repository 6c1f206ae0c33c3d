"""The functions of authors: their names, where they begin, of which kind they are, and what is wrong with them."""

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from credhook.logs.places import place


class NotOneYield(RuntimeError):
    """The lifespan function has ended before its `yield`, or has come to a second one."""


def name_of(function: Any) -> str:
    """Return the name of a function, a method, or the function in a `functools.partial`; "" if there is none."""
    return next((name for part in _chain(function) if (name := getattr(part, "__name__", ""))), "")


def definition(function: Any) -> Any:
    """Return the function that the author has written: without decorators, `functools.partial` and its object."""
    *_, inner = _chain(function)
    return inner


def defined_at(function: Any) -> str:
    """Return where the function begins, as `file:line`, or "" if that is unknown."""
    code = getattr(definition(function), "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else ""


def _chain(function: Any) -> Iterator[Any]:
    """Yield the function, then the functions inside of decorators, `functools.partial` and callable objects."""
    while function is not None:
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function.__call__):
            function = function.__call__
        else:
            function = getattr(function, "__wrapped__", None)


def is_async(function: Any) -> bool:
    """Return True for an `async def`, also as a method, in a callable object, and behind decorators."""
    return any(inspect.iscoroutinefunction(part) for part in _chain(function))


def is_async_generator(function: Any) -> bool:
    """Return True for an `async def` with a `yield`, also if a decorator makes it a context manager."""
    return any(inspect.isasyncgenfunction(part) for part in _chain(function))


def is_generator(function: Any) -> bool:
    """Return True for any function with a `yield`."""
    return is_async_generator(function) or any(inspect.isgeneratorfunction(part) for part in _chain(function))


def takes(function: Callable[..., Any], number: int) -> bool:
    """Return True if the function can be called with so many arguments. Some built-in functions do not say."""
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def mistakes(function: Callable[..., Any], argument: str) -> Iterator[str]:
    """Yield the mistakes that would keep the function from running as a handler. Type checkers compare annotations.

    `argument`: the name of its first argument.
    """
    if isinstance(function, type):
        yield "is a class, which would only be instantiated: register a function or a method"
    if is_generator(function):
        yield "is a generator and would never run: leave out the yield"
    if not takes(function, 2):
        yield f"should take two arguments, ({argument}, context)"
    first, second, *_ = [*inspect.signature(function).parameters, "", ""]
    if first == "context" or second == argument:
        yield f"takes (context, {argument}): swap the two arguments"


def as_manager(function: Callable[..., Any]) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Return the function so that its call can be entered. It has a `yield`, and may be an `asynccontextmanager`."""
    return asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function


#: Frames of an error that contextlib raises about a lifespan itself: `live` and a method of contextlib.
_OWN_FRAMES: Final = 2


@functools.cache
def lifetime(function: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return a start-up and a shutdown function that run this one, up to its `yield` and after it.

    It runs in one task, as task groups and time limits in it need. Plugins that share it get the same two functions.
    """
    manager = as_manager(function)
    entered: list[tuple[object, asyncio.Event, asyncio.Task[None]]] = []

    async def live(ready: "asyncio.Future[Any]", leaving: asyncio.Event) -> None:
        try:
            async with manager() as state:
                ready.set_result(state)
                await leaving.wait()
        except RuntimeError as error:
            # The words of contextlib, which raises them here or in a context manager inside the lifespan.
            is_own = len(traceback.extract_tb(error.__traceback__)) == _OWN_FRAMES
            if not is_own or not str(error).startswith("generator didn't"):
                raise
            number = "a second time" if ready.done() else "nothing"
            hint = "write one yield of the state; the code after it runs at shutdown"
            raise NotOneYield(f"{name_of(function)} at {defined_at(function)} yields {number}: {hint}") from None

    @functools.wraps(function)
    async def enter() -> Any:
        ready, leaving = asyncio.get_running_loop().create_future(), asyncio.Event()
        task = asyncio.create_task(live(ready, leaving))
        try:
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not ready.done():
            return task.result()  # Its error.
        entered.append((ready.result(), leaving, task))
        return ready.result()

    @functools.wraps(function)
    async def leave(state: object) -> None:
        place = next(place for place, (value, *_) in enumerate(entered) if value is state)
        _, leaving, task = entered.pop(place)
        leaving.set()
        await task

    return enter, leave
