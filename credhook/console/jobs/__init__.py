"""Work on many events that goes on whether or not a browser looks."""
