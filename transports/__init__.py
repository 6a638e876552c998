"""Bytes to messages and back: codecs, byte streams, connections."""
