"""Everything on one machine: Redis, certificates, processes; for demo and `make up`."""
