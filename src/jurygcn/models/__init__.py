"""Networks and the training loop."""

from jurygcn.choices import Recipe
from jurygcn.models.gcn import GCN
from jurygcn.models.receptive_field import ReceptiveField
from jurygcn.models.training import Training, fit_gcn, train

__all__ = ["GCN", "ReceptiveField", "Recipe", "Training", "fit_gcn", "train"]
