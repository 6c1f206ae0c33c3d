"""Events on their way: endpoints, signatures, retries, forgeries."""
