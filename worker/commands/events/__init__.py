"""`credhook events`: find, show, replay and erase what the ledger remembers."""
