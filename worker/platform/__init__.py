"""What all workers share through Redis: the circuit breaker, the rate."""
