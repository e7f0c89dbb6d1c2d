"""KV offload for an engine: a scheduler-side object, the host tier behind it, and a worker on each rank."""
