"""The receiver: signature, parse, inbox, 202."""
