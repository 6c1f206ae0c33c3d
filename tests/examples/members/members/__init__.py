"""A Django application whose table the handlers write."""
