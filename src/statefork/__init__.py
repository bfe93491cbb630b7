"""StateFork: one Python interface over every way to branch an environment.

Start with ``create_env_manager(method=…)``; docs/backends.md compares the methods.
"""

from statefork.backend import Backend, Capabilities, CommandResult
from statefork.deciders import (
    AlwaysFalseDecider,
    AlwaysTrueDecider,
    Decider,
    DecisionContext,
    RandomDecider,
    SmartCheckpointDecider,
    ThresholdDecider,
)
from statefork.environment import Environment
from statefork.errors import StateForkError
from statefork.factory import create_env_manager, open_env_manager
from statefork.manager import EnvironmentBranch, EnvironmentManager, ForkableEnvironmentManager
from statefork.tree import SnapshotNode

__all__ = [
    "AlwaysFalseDecider",
    "AlwaysTrueDecider",
    "Backend",
    "Capabilities",
    "CommandResult",
    "Decider",
    "DecisionContext",
    "Environment",
    "EnvironmentBranch",
    "EnvironmentManager",
    "ForkableEnvironmentManager",
    "RandomDecider",
    "SmartCheckpointDecider",
    "SnapshotNode",
    "StateForkError",
    "ThresholdDecider",
    "__version__",
    "create_env_manager",
    "open_env_manager",
]

__version__ = "0.1.0"
