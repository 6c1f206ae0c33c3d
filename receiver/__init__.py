"""The receiver: accepts deliveries, and owns the published vocabulary."""
