"""Traces, for those who have a collector: one for each event, from its delivery to its handlers.

Spans are collected and exported for a process as a whole. Nothing here imports OpenTelemetry before it is known that
traces are wanted; where it is not installed, events go their way without.
"""

import importlib
import os
import threading
from typing import TYPE_CHECKING, Final, Optional

import structlog

from credhook.tracing.switch import exporters

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from credhook.tracing.provider import Spans

log = structlog.get_logger("credhook")

#: Seconds that a process waits at its end for spans to be exported: whoever stops it has set it a time.
LAST_SPANS: Final = 1.0

_spans: Optional["Spans"] = None


def start(part: str) -> None:
    """Trace from now on, if that is wanted and possible. If it is not possible, that is logged, and no more.

    `part`, `receiver` or `worker`, names the service, unless OTEL_SERVICE_NAME does.
    """
    global _spans  # noqa: PLW0603  As OpenTelemetry's own provider, there is one for a process.
    names = exporters(os.environ)
    if not names or _spans is not None:
        return
    try:
        _spans = importlib.import_module("credhook.tracing.provider").Spans(part, names)
    except ModuleNotFoundError as missing:
        log.warning("tracing_off", error=f"{missing.name} is not installed", hint="pip install 'credhook[otel]'")
    except Exception as error:  # Events do not depend on what the OTEL_ variables say.
        log.warning("tracing_off", exc_info=error, hint="see the variables that begin with OTEL_")
    else:
        log.info("tracing_on", exporters=names)


def tracer() -> Optional["Tracer"]:
    """The process's; None if it does not trace."""
    return _spans.tracer if _spans is not None else None


def flush() -> None:
    """Have exported what has come together, unless that takes too long."""
    if _spans is None:
        return
    # OpenTelemetry would wait for as long as the collector does not answer.
    flushing = threading.Thread(target=_spans.flush, daemon=True, name="last spans")
    flushing.start()
    flushing.join(LAST_SPANS)
