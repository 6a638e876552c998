"""WebSocket: the upgrade, its frames, and packets of the P2P protocol in them."""
