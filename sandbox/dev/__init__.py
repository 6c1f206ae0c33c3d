"""`credhook dev`: everything around an author's handlers, which are started anew whenever they are saved."""
