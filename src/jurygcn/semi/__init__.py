"""Learning from few labels with the jury's help, and the classifiers to compare with."""

from collections.abc import Callable

from torch_geometric.data import Data

from jurygcn.semi.evidential import GPNClassifier, SGNNClassifier
from jurygcn.semi.fitted import Fitted, Method
from jurygcn.semi.networks import WELL_TRAINED_GCN, GATClassifier, GCNClassifier
from jurygcn.semi.posthoc import DeepEnsemble, Energy, Laplace, MCDropout, TemperatureScaling
from jurygcn.semi.pseudo_labels import PseudoLabels
from jurygcn.semi.reweighting import Reweighted, Reweighting, loss_weights, reweight
from jurygcn.semi.self_training import SelfTrained, SelfTraining, self_train

# name -> the method with its authors' settings for a graph
METHODS: dict[str, Callable[[Data], Method]] = {
    "gcn": lambda _: GCNClassifier(),
    "reweight": lambda _: Reweighting(),
    "self-train": lambda _: SelfTraining(),
    "self-train-validated": lambda _: SelfTraining(hops="validated"),
    "gat": GATClassifier.for_graph,
    "sgnn": lambda _: SGNNClassifier(),
    "gpn": GPNClassifier.for_graph,
    "mc-dropout": lambda _: MCDropout(),
    "ensemble": lambda _: DeepEnsemble(),
    "temperature": lambda _: TemperatureScaling(),
    "energy": lambda _: Energy(),
    "laplace": lambda _: Laplace(),
}

__all__ = [
    "METHODS",
    "WELL_TRAINED_GCN",
    "DeepEnsemble",
    "Energy",
    "Fitted",
    "GATClassifier",
    "GCNClassifier",
    "GPNClassifier",
    "Laplace",
    "MCDropout",
    "Method",
    "PseudoLabels",
    "Reweighted",
    "Reweighting",
    "SGNNClassifier",
    "SelfTrained",
    "SelfTraining",
    "TemperatureScaling",
    "loss_weights",
    "reweight",
    "self_train",
]
