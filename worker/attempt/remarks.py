"""What a handler does that helps nobody: said once for each handler and process, without anything that it holds."""

from collections.abc import Awaitable
from typing import Final

import structlog

from credhook.worker.handlers.handler import Handler

log = structlog.get_logger("credhook.worker")

_DROPPED: Final = "what a handler returns is dropped; raise Retry or GiveUp to decide, and return nothing"

_remarked_on: set[str] = set()


def remark_on_result(handler: Handler, result: object) -> None:
    """Say that a handler has returned something, and of what class; nothing of it if it has said so before."""
    if result is None or handler.name in _remarked_on:
        return
    _remarked_on.add(handler.name)
    kind = type(result).__name__
    if isinstance(result, Exception):
        hint = f"write raise {kind}(…) instead of return"
    elif isinstance(result, Awaitable):
        hint = "write return await: it has not run"
    else:
        hint = _DROPPED
    log.warning("handler_returned", handler=handler.name, at=handler.at, returned=kind, hint=hint)
