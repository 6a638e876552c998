"""Virtual time of asyncio and trio, and the clocks of a world."""
