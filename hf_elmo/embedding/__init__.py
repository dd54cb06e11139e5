"""A corpus to vectors: reading, batching, writing in shards, resuming."""
