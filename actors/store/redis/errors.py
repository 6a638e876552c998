"""Errors of a store in Redis.

RedisStoreError
+-- RedisConfigError    the URL, the server or its settings do not fit
+-- RedisAway           it cannot be reached, or does not serve now
+-- RedisRefused        it refused one command
+-- RedisMoving         the slot of a command's keys is being moved
+-- StoreLost           this process owns the keys no more, or cannot know what is stored
"""

from __future__ import annotations


class RedisStoreError(Exception):
    """The base of all."""


class RedisConfigError(RedisStoreError):
    """The URL, the server or its settings do not fit."""


class RedisAway(RedisStoreError):
    """Redis cannot be reached, or does not serve now. Commands may have been done."""


class RedisRefused(RedisStoreError):
    """Redis refused a command, and did nothing of it: it is full, for one."""


class RedisMoving(RedisStoreError):
    """A command was not done, because the slot of its keys is being moved to another server."""


class StoreLost(RedisStoreError):
    """This process owns the keys no more, or cannot know what is stored: the node ends."""
