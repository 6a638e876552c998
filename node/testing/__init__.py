"""The testing toolkit: nodes in memory, virtual time and faults for tests of users' programs.

Users import `millpond.testing`; the pytest plugin (`plugin`) has a world and nodes as fixtures.
docs/guides/testing.md tells how.
"""
