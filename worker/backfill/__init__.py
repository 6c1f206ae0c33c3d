"""What the platform's lists say has happened, compared with the ledger: what no delivery has brought is accepted."""
