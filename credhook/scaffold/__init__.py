"""What a new package of handlers begins with."""
