"""Other people's code: how it is declared, what it is given, and where it is loaded from."""
