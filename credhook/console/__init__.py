"""`credhook console`: pages for operators, to see what happens and to act on it."""
