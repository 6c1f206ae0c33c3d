"""How Redis is reached, and judged."""
