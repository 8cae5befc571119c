"""A cluster of unlike hosts on one machine: network namespaces, shaped links, CPU quotas, and plans that run on it."""
