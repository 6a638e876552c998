"""The console: the page at `/millpond/` that shows an operator what a node holds.

Only `millpond.node` imports it. The page is plain ES modules and CSS in `static`. It speaks the P2P
protocol over a WebSocket at the HTTP port, so that each of its requests is one that a client of
the wire protocol makes, with the same access check (docs/internals/console.md).
"""
