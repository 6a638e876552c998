"""Discovery of nodes on the local network by mDNS; only `node.peer_services` may import it."""
