"""Hides the library from the tests' processes: see `support.process.commands`."""

raise ImportError("hidden from the tests' processes")
