"""What each page shows, and what its forms do."""
