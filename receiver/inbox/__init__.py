"""Where an accepted delivery goes: one script writes the event and its job."""
