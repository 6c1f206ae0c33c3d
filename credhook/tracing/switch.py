"""Whether spans are wanted, and who is to export them: by OpenTelemetry's own variables."""

from collections.abc import Mapping
from typing import Final

#: Either of them set to something says that there is a collector.
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def exporters(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters, by the names under which packages offer them; none if no spans are wanted. Pure.

    OpenTelemetry's own default would be a collector on this machine. Here somebody has to say so: a fleet that was
    started without it is not to look for one.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    wanted = environment.get("OTEL_TRACES_EXPORTER", "") or ("otlp" if _first(environment, _ENDPOINTS) else "")
    named = dict.fromkeys(name.strip() for name in wanted.split(","))
    return tuple(_offered(name, environment) for name in named if name not in {"", "none"})


def _offered(name: str, environment: Mapping[str, str]) -> str:
    if name != "otlp":
        return name
    return "otlp_proto_grpc" if _first(environment, _PROTOCOLS) == "grpc" else "otlp_proto_http"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")
