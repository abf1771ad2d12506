"""A Redis (Valkey) of a test's own: the testing kit's."""

from aaiclick_queue.testing.redis_server import OwnRedis, free_port

__all__ = ["OwnRedis", "free_port"]
