"""The worker: acts on events, with a room for each step of the way."""
