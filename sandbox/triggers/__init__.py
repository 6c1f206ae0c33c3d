"""Making things happen, and go wrong."""
