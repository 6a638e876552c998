"""What lies behind the journal: an SQLite file for each channel or log, and their catalog."""
