"""Groups of the chat: signed membership, messages to all members, and their histories."""
