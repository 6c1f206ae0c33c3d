"""Logs that a test has configured end with it."""

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def own_logs() -> Iterator[None]:
    """Have everything that `configure_logs` sets as it was before."""
    root = logging.getLogger()
    handlers, level, warn = root.handlers[:], root.level, warnings.showwarning
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    if not structlog.is_configured():
        return
    structlog.reset_defaults()
    # A logger that was first used meanwhile would go on as it was configured then, and nobody could capture it.
    for name, module in list(sys.modules.items()):
        for logger in vars(module).values() if name.startswith("credhook") else ():
            if isinstance(logger, structlog._config.BoundLoggerLazyProxy):
                vars(logger).pop("bind", None)
    root.handlers[:], warnings.showwarning = handlers, warn
    root.setLevel(level)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
