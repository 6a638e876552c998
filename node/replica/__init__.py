"""The replica of a node: its journal and snapshots of its store in an object store."""
