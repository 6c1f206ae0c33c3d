"""What has become of events: the causes of failures, and the story of one event, read from the ledger."""
