"""Graph models, and the one training loop."""

from jurygcn.models.gcn import GCN
from jurygcn.models.receptive_field import ReceptiveField, normalized_adjacency
from jurygcn.models.training import Training, train

__all__ = ["GCN", "ReceptiveField", "Training", "normalized_adjacency", "train"]
