"""Expected gain in closed form: of the nodes that the design would choose next, those whose labels promise most."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.active.design import Design
from jurygcn.active.scene import Choice, Scene
from jurygcn.conformal.advice import SHARPNESS
from jurygcn.leave_one_out.gains import PanelGains
from jurygcn.leave_one_out.panel import MOST_LANDMARKS, Panel
from jurygcn.leave_one_out.stacking import class_weights


@dataclass(frozen=True)
class Gain(Design):
    """Of the design's next nodes, choose those that would make the panel's predictions of all nodes surest.

    The gain of a node is exact for the panel with its weights (:mod:`jurygcn.leave_one_out.gains`). After each choice
    the panel learns the class that it predicts there, so the next node is not a twin. Before the first label, and
    with more than 512 labels, this is the design.

    Args:
        shortlist: how many nodes of the design are compared, as a multiple of the batch.
    """

    shortlist: float = 3.0

    def __call__(self, scene: Scene) -> Choice:
        """The batch, best first. The score of a node is its expected gain, in nodes predicted right."""
        known = torch.cat([scene.labelled.cpu(), scene.pending.cpu()])
        if not len(scene.labelled) or len(known) + scene.batch > MOST_LANDMARKS:
            return super().__call__(scene)
        wide = min(len(scene.pool), max(scene.batch, round(self.shortlist * scene.batch)))
        left = super().__call__(replace(scene, batch=wide)).nodes
        labels = scene.data.y[scene.labelled].cpu()
        gains = fitted(scene, scene.labelled.cpu(), labels)
        labels = torch.cat([labels, gains.scores[scene.pending.cpu()].argmax(dim=1)])
        nodes, scores = list[int](), list[float]()
        while len(nodes) < scene.batch:
            gains = fitted(scene, known, labels, gains.weights)
            gain = gains.expected(left)
            best = int(gain.argmax())
            nodes.append(int(left[best]))
            scores.append(float(gain[best]))
            known, labels = (
                torch.cat([known, left[[best]]]),
                torch.cat([labels, gains.scores[left[[best]]].argmax(dim=1)]),
            )
            left = torch.cat([left[:best], left[best + 1 :]])
        return scene.choice(nodes, scores)


def fitted(scene: Scene, nodes: Tensor, labels: Tensor, weights: Tensor | None = None) -> PanelGains:
    """The panel of these labels; by default with weights that its left-out predictions choose."""
    targets = functional.one_hot(labels, scene.num_classes).double() - 1.0 / scene.num_classes
    panel = Panel(scene.data, nodes, targets)
    if weights is None:
        count = len(panel.members)
        own = torch.stack([member.own for member in panel.members]) if count else targets.new_empty(0, *targets.shape)
        weights = class_weights(own, labels) if count else torch.empty(0)
        if count and not weights.any():  # too few labels to choose by: all alike
            weights = torch.full((count,), SHARPNESS / count, dtype=torch.float64)
    return PanelGains.of(scene.data, panel, weights)
