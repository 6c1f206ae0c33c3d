"""The command line: one line per command, each module imported only when its command runs."""
