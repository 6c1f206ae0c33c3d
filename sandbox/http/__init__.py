"""How the sandbox speaks HTTP: bodies, tokens, errors, JSON on the wire."""
