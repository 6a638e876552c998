"""The store in Redis or Valkey: all channels and streams of a node below one prefix of keys."""
