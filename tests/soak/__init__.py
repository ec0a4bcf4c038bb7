"""Real commands killed, starved of disk and let loose on one registry, for as long as is asked."""
