"""What a worker does, as spans: attempts, requests to the platform, handlers. Imported where somebody traces alone."""
