"""Codecs of S2: JSON, protobuf, S2S frames, server-sent events and columns."""
