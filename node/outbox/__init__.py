"""The post: what waits for peers, how it goes to them, and what comes from them."""
