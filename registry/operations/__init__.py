"""The use cases, one module each: they join checkpoints, adapter formats, store and index, and print nothing."""
