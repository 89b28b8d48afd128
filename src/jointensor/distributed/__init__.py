"""Several processes that train one model: the process group, and rows solved in shards."""
