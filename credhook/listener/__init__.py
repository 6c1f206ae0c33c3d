"""What stands between a port of ours and its application: connections, their bounds, and who is turned away."""
