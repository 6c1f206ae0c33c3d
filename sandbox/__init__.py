"""The credential platform of the specification, played locally. Shares no code with `receiver` and `worker`."""
