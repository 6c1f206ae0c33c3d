"""Who may use the console: login, sessions, and what no page of another site can do."""
