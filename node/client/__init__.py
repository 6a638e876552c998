"""The clients of a node: channels, streams, states, S3P and RustLog. No server is imported."""
