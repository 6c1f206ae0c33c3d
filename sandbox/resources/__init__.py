"""What the platform keeps: templates, issuances, presentations, users and the like."""
