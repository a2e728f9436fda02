"""Jackknife uncertainty for graph neural networks: which predictions to trust, which node to label next."""

from importlib.metadata import version

from jurygcn import active, bandit, semi
from jurygcn.data import load_dataset
from jurygcn.errors import JuryError
from jurygcn.jackknife import Jury, Retraining, Verdict
from jurygcn.models import GCN, train

__version__ = version("jurygcn")
__all__ = [
    "GCN",
    "Jury",
    "JuryError",
    "Retraining",
    "Verdict",
    "__version__",
    "active",
    "bandit",
    "load_dataset",
    "semi",
    "train",
]
