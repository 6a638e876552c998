"""Websocket."""
