"""Networks and the training loop."""

from jurygcn.models.gcn import GCN
from jurygcn.models.receptive_field import ReceptiveField
from jurygcn.models.training import Training, train

__all__ = ["GCN", "ReceptiveField", "Training", "train"]
