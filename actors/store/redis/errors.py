"""Errors of a store in Redis.

RedisStoreError
+-- RedisConfigError    the URL, the server or its settings do not fit
+-- RedisAway           it cannot be reached, or does not serve now
+-- RedisRefused        it refused one command
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


class StoreLost(RedisStoreError):
    """This process owns the keys no more, or cannot know what is stored: the node ends."""
