"""How many servers there should be, for those who share a database and their requests."""
