"""Queues and edges of many machines, simulated with what single operations take here (simpy)."""
