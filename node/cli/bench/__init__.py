"""`millpond bench`: a command for each kind of benchmark."""
