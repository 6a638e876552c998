"""Durable Streams: their appends, producers and forks, as parts of a stream.

Only the stream and the HTTP API import them.
"""
