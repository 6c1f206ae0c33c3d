"""What our processes count, and what is asked of Redis, as Prometheus reads it. deploy/METRICS.md lists all of it."""
