"""The node itself, its clients, its commands, and what surrounds them: peers, access, chat, jobs.

May import transports and actors; nothing but the public modules of `millpond` imports it.
"""
