"""Classes left out and features shifted: what changes, and what must not."""

from __future__ import annotations

import pytest
import torch

from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import draw_nodes, leave_out_classes, shift_features

LABELS = torch.tensor([0, 3, -1, 2, 1, 3, 2])


def test_left_out_classes_are_renumbered():
    highest = leave_out_classes(LABELS, 2)
    assert highest.labels.tolist() == [0, -1, -1, -1, 1, -1, -1]
    assert highest.outlier.tolist() == [False, True, False, True, False, True, True]
    assert highest.classes == (0, 1)
    named = leave_out_classes(LABELS, [1])
    assert named.labels.tolist() == [0, 2, -1, 1, -1, 2, 1]
    assert named.classes == (0, 2, 3)


@pytest.mark.parametrize("left_out", [0, 4, 9, -1, [], [7], [0, 1, 2, 3]])
def test_some_but_not_all_classes(left_out):
    with pytest.raises(DataError, match="some but not all of the 4 classes"):
        leave_out_classes(LABELS, left_out)


def test_shifted_features():
    x = torch.rand(50, 400, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    nodes = draw_nodes(torch.arange(10, 50), share=0.2, generator=torch.Generator().manual_seed(1))
    assert len(nodes) == 8
    assert bool((nodes >= 10).all())
    untouched = torch.ones(50, dtype=torch.bool)
    untouched[nodes] = False
    normal, coins = (
        shift_features(x, nodes, kind=kind, generator=torch.Generator().manual_seed(2))
        for kind in ("normal", "bernoulli")
    )
    assert torch.equal(x, before)
    for shifted in (normal, coins):
        assert torch.equal(shifted[untouched], x[untouched])
    assert float(normal[nodes].mean()) == pytest.approx(0, abs=0.06)
    assert float(normal[nodes].std()) == pytest.approx(1, abs=0.06)
    assert coins[nodes].sum(dim=1) == pytest.approx(torch.ones(8))
    assert float((coins[nodes] > 0).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_refusals():
    generator = torch.Generator()
    with pytest.raises(SettingError, match="normal, bernoulli"):
        shift_features(torch.ones(2, 2), torch.tensor([0]), kind="uniform", generator=generator)
    with pytest.raises(SettingError, match="share above 0"):
        draw_nodes(torch.arange(3), share=0.0, generator=generator)
