"""StateFork: one Python interface over every way to branch an environment.

Only the distribution and the name exist yet; the engine it builds on is :mod:`waypoint`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
