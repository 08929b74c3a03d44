"""Work in parts, here or on a cluster: the tasks that are done to parts, and their results."""
