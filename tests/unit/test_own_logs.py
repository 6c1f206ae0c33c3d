"""What the tests' own care for logs is for."""

import io
import sys

from log_configuration import own_logs
from structlog.testing import capture_logs

from credhook.logs import configure_logs
from credhook.worker.queue.group_commit import log


def test_a_logger_that_was_first_used_under_another_configuration_can_be_captured_afterwards() -> None:
    hooks = sys.excepthook, sys.unraisablehook
    with own_logs():
        configure_logs(io.StringIO())
        log.warning("first")
    with capture_logs() as lines:
        log.warning("second")
    assert [line["event"] for line in lines] == ["second"]
    assert (sys.excepthook, sys.unraisablehook) == hooks
