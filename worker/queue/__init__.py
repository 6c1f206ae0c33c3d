"""What of an event's life is in Redis: claims, leases, and the scripts that move it on."""
