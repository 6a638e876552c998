"""A disk in memory, which fails as it is told and loses what was not synced."""
