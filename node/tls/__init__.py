"""Certificates and the contexts of listeners and clients."""
