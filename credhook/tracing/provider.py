"""What makes spans and exports them: OpenTelemetry's SDK, as its variables say."""

from collections.abc import Iterable
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from credhook.store.announcements import version


class UnknownExporter(Exception):
    """No package that is installed offers an exporter of that name."""


class Spans:
    """The spans of this process, on their way to wherever they are exported to.

    The provider is also the one that everybody else finds, so that what authors' libraries trace joins in. Where
    somebody has set one before, as `opentelemetry-instrument` does, that one is used.

    Attributes:
        tracer: makes ours.
    """

    def __init__(self, part: str, exporters: Iterable[str]) -> None:
        """Export by those of these names that packages offer; the service is `credhook-` and the part.

        Raises:
            UnknownExporter: there is none of that name.
            Exception: whatever an exporter finds wrong with its variables.
        """
        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            ready = [_exporter(name) for name in exporters]
            # At exit it would wait for as long as a collector does not answer; `process.flush` does not.
            provider = TracerProvider(resource=_resource(part), shutdown_on_exit=False)
            for exporter in ready:
                provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
        self._provider = provider
        self.tracer = provider.get_tracer("credhook", version())

    def flush(self) -> None:
        """Export what has come together, however long it takes."""
        self._provider.force_flush()


def _exporter(name: str) -> SpanExporter:
    for offered in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: SpanExporter = offered.load()()
        return exporter
    raise UnknownExporter(name)


def _resource(part: str) -> Resource:
    ours = Resource.create({"service.name": f"credhook-{part}", "service.version": version()})
    return ours.merge(OTELResourceDetector().detect())  # What variables say goes before what we say.
