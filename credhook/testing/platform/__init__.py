"""The platform in this process, as handlers under test meet it: its sandbox, the client, the circuit breaker."""
