"""The RustLog protocol: its codec, and the connection of a client."""
