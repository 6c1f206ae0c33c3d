"""Refuse calls that block the event loop under an `async def` handler, in `credhook dev` and in the test kit."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from credhook.logs.places import runs_now

#: Functions that blockbuster would replace, but that may block. Files and SQLite answer within a moment. A debugger
#: waits for input.
_ALLOWED: Final = ("os.", "io.", "sqlite3.", "builtins.")
#: The functions in which asyncio starts a process without waiting for its end.
_ASYNCIO: Final = ("asyncio/base_events.py", {"subprocess_exec", "subprocess_shell"})


@cache
def refuse_blocking_calls() -> None:
    """Let `time.sleep`, locks, sockets and `subprocess` raise `BlockingError` for the rest of the process.

    They do so only on an event loop, and only while a handler runs. Threads of plain functions may block.

    Raises:
        ModuleNotFoundError: the package blockbuster is not installed.
    """
    from blockbuster import BlockBuster, BlockBusterFunction

    functions = {name: function for name, function in BlockBuster().functions.items() if not name.startswith(_ALLOWED)}
    processes = BlockBusterFunction(None, "subprocess.Popen.__init__", can_block_functions=[_ASYNCIO])
    for function in (*functions.values(), processes):
        function.can_block_predicate = partial(_may_block, function.can_block_predicate)
        function.activate()


def _may_block(predicate: Callable[..., bool], *arguments: Any, **options: Any) -> bool:
    return runs_now.get() is None or predicate(*arguments, **options)
