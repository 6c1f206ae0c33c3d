"""Ask the application to remind holders. Each module registers its handlers when it is imported."""

from reminders import issuances, presentations
from reminders.plugin import handlers

__all__ = ["handlers", "issuances", "presentations"]
