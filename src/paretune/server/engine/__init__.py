"""Our engine: continuous batching of self-guided answers over one model, on a CPU or a GPU."""

from paretune.server.engine.batch import BatchEngine
from paretune.server.engine.limits import EngineLimits

__all__ = ["BatchEngine", "EngineLimits"]
