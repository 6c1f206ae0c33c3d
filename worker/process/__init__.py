"""The worker process: how many events at once, RQ's side of it, who watches over it."""
