"""The worker: acts on events."""
