"""The store: partitions of channels behind one small seam."""
