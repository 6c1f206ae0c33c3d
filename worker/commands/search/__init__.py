"""Finding events: what is meant, by which index it is found, how many there are."""
