"""State streams: write them, follow them, and ask the node for what they make."""
