"""The disks of a world: a simulated one with faults and power failures, and the real one."""
