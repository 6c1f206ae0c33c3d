"""What the platform is asked, how its answers are read, and what its refusals mean. Pure."""
