"""Learning from few labels with the jury's uncertainty, and the classifiers to compare with."""

from collections.abc import Callable

from jurygcn.baselines.cagcn import CaGCN
from jurygcn.baselines.classifier import Fitted, Method, check_preset, preset_for
from jurygcn.baselines.evidential import GPNClassifier, SGNNClassifier
from jurygcn.baselines.gats import GATS
from jurygcn.baselines.networks import WELL_TRAINED_GCN, GATClassifier, GCNClassifier
from jurygcn.baselines.posthoc import DeepEnsemble, Energy, Laplace, MCDropout, TemperatureScaling
from jurygcn.choices import PRESETS
from jurygcn.reweighting import Reweighted, Reweighting, loss_weights, reweight
from jurygcn.self_training.pseudo_labels import PseudoLabels
from jurygcn.self_training.rounds import SelfTrained, SelfTraining, self_train

# Name -> the method with its authors' settings, for all graphs (None) or for one preset.
METHODS: dict[str, Callable[[str | None], Method]] = {
    "gcn": lambda _: GCNClassifier(),
    "reweight": lambda _: Reweighting(),
    "self-train": lambda _: SelfTraining(),
    "self-train-validated": lambda _: SelfTraining(hops="validated"),
    "gat": GATClassifier.preset,
    "sgnn": lambda _: SGNNClassifier(),
    "gpn": GPNClassifier.preset,
    "mc-dropout": lambda _: MCDropout(),
    "ensemble": lambda _: DeepEnsemble(),
    "temperature": lambda _: TemperatureScaling(),
    "cagcn": lambda _: CaGCN(),
    "gats": lambda preset: GATS(weight_decay=0.0 if preset == "pubmed" else GATS.weight_decay),
    "energy": lambda _: Energy(),
    "laplace": lambda _: Laplace(),
}

__all__ = [
    "GATS",
    "METHODS",
    "PRESETS",
    "WELL_TRAINED_GCN",
    "CaGCN",
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
    "check_preset",
    "loss_weights",
    "preset_for",
    "reweight",
    "self_train",
]
