"""Active learning: choose the next nodes to label, and measure the gain of each label."""

from jurygcn.active.design import Design
from jurygcn.active.history import History, Step
from jurygcn.active.loop import run
from jurygcn.active.oracle import at_terminal, from_file, truth
from jurygcn.active.pool import PoolStrategy
from jurygcn.active.protocol import Schedule
from jurygcn.active.registry import STRATEGIES
from jurygcn.active.rim import Rim
from jurygcn.active.scene import Choice, Scene
from jurygcn.active.stopping import expected, reached, settled
from jurygcn.active.tasks import Task, next_tasks
from jurygcn.choices import Recipe

__all__ = [
    "STRATEGIES",
    "Choice",
    "Design",
    "History",
    "PoolStrategy",
    "Recipe",
    "Rim",
    "Scene",
    "Schedule",
    "Step",
    "Task",
    "at_terminal",
    "expected",
    "from_file",
    "next_tasks",
    "reached",
    "run",
    "settled",
    "truth",
]
