"""The chat: one conversation with each peer, kept as a stream, over the post
(docs/guides/chat.md)."""
