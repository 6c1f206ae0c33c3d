"""Other people's code: how it is registered and loaded, and how one handler is run."""
