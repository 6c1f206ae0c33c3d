"""`credhook status`: how the fleet is, and what wants attention."""
