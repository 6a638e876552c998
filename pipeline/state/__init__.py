"""State Protocol streams as tables: the latest value of every (type, key)."""
