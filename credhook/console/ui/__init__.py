"""How the pages look: templates, style, script, plots. Nothing here knows what an event is."""
