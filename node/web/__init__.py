"""The chat page: its files, logins, and what it asks the node."""
