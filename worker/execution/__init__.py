"""Running handlers: start-up, one run after the other, what becomes of one that fails, hangs or will not end."""
