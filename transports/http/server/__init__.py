"""HTTP/1.1 and HTTP/2 on one port, as sessions on the byte-stream seam: connections to requests.

`httptools` reads HTTP/1.1, `h2` speaks HTTP/2; what is ours is what lies around them: which of the
two a connection speaks (`connection`), requests as tasks of an ASGI application (`exchange`,
`server`), backpressure both ways, deadlines, limits, and an end that loses no answer.
"""
