"""What all workers share through Redis: the token, the circuit breaker, the rate."""
