"""The organisation that is played: its state, its rules, and its operations as data."""
