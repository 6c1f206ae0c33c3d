"""Finds and counts events by their index."""
