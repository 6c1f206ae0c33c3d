"""Trace each event from its delivery to its handlers, if OpenTelemetry's variables name a collector.

OpenTelemetry is imported only if traces are wanted. If it is not installed, events are handled without traces.

The receiver writes W3C's `traceparent` into the record of an event. It is empty for an event that was not sampled, so
that workers do not trace the event either. A replay marks it, see replay.lua.
"""

import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Optional

import structlog

from credhook.store import REPLAYED
from credhook.store.announcements import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

log = structlog.get_logger("credhook")

#: The packages of the extra `otel`. Messages name each of them, since `credhook[otel]` is on no package index.
PACKAGES: Final = "opentelemetry-exporter-otlp-proto-http opentelemetry-sdk"

#: Seconds that a process waits for its last spans to be exported.
_LAST_SPANS_SECONDS: Final = 1.0

#: The text for an event that was not sampled.
NOT_CHOSEN: Final = ""

#: What a record keeps of a sampled event: W3C's `traceparent`, after the mark of a replay. The last bit means sampled.
_RECORDED: Final = re.compile(rf"{REPLAYED}?00-([0-9a-f]{{32}})-[0-9a-f]{{16}}-[0-9a-f][13579bdf]", re.ASCII)

_provider: Optional["TracerProvider"] = None


def trace_id(recorded: str) -> str | None:
    """Return the id of the trace from an event's record, or None if the event was not sampled."""
    match = _RECORDED.fullmatch(recorded)
    return match[1] if match else None


def wanted_exporter(environment: Mapping[str, str]) -> str:
    """Return the name of the exporter that OpenTelemetry's variables ask for, "" if no spans are wanted.

    OpenTelemetry's default is a collector on this machine. Here a variable must name a collector, so that a fleet
    without a collector does not look for one.
    """
    ask = environment.get
    endpoint = ask("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or ask("OTEL_EXPORTER_OTLP_ENDPOINT")
    name = ask("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    if name == "none" or ask("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    protocol = ask("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or ask("OTEL_EXPORTER_OTLP_PROTOCOL")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    return otlp if name == "otlp" else name


def start(part: str) -> None:
    """Trace from now on, if traces are wanted. If tracing cannot start, log that and go on.

    `part`, `receiver` or `worker`, names the service, unless OTEL_SERVICE_NAME does.
    """
    global _provider  # noqa: PLW0603  OpenTelemetry itself has one provider for a process.
    exporter = wanted_exporter(os.environ)
    if not exporter or _provider is not None:
        return
    try:
        from credhook.tracing.spans import create_provider

        _provider = create_provider(part, exporter)
    except ModuleNotFoundError as missing:
        log.warning("tracing_off", error=f"{missing.name} is not installed", hint=f"pip install {PACKAGES}")
    except Exception as error:  # Events do not depend on what the OTEL_ variables say.
        log.warning("tracing_off", exc_info=error, hint="see the variables that begin with OTEL_")
    else:
        log.info("tracing_on", exporter=exporter)


def tracer() -> Optional["Tracer"]:
    """Return the tracer of this process, or None if it does not trace."""
    return _provider.get_tracer("credhook", version()) if _provider is not None else None


def flush() -> None:
    """Export the remaining spans, unless that takes too long."""
    if _provider is not None:
        # OpenTelemetry would wait for as long as the collector does not answer.
        flushing = threading.Thread(target=_provider.force_flush, daemon=True, name="last spans")
        flushing.start()
        flushing.join(_LAST_SPANS_SECONDS)
