"""One attempt at an event: fetch what it refers to, run the handlers, decide what follows."""
