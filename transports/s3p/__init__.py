"""S3P v0.2.0: its parsers, commands, and the connection of a client."""
