"""Subscriptions of Durable Streams: durable cursors over several streams that wake a worker. One
cell each; transports import the messages."""
