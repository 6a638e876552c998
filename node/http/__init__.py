"""The node's HTTP listener, and what it tells of the node itself."""
