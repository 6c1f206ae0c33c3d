"""`credhook doctor`: tries what receiver and workers depend on, and says what to do about what is wrong."""
