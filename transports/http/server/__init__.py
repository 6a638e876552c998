"""The HTTP server: HTTP/1.1 and HTTP/2 on one port, as sessions on byte streams.

`httptools` parses HTTP/1.1 and `h2` implements HTTP/2. Ours are the choice between the two
(`connection`), requests as tasks of an ASGI application (`exchange`, `server`), backpressure both
ways, deadlines, limits, and a drain that loses no response.
"""
