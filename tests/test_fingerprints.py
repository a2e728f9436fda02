"""Fingerprints: the same for the same content however it lies in memory, different for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
import torch

from jurygcn import GCN
from jurygcn.io.fingerprints import architecture, fingerprint, sealed, state, unsealed

X = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)


@dataclass(frozen=True)
class Point:
    x: float
    y: object = None


@dataclass(frozen=True)
class Spot:
    x: float
    y: object = None


SAME = {
    "strides": (X, X.T.contiguous().T, X.repeat(1, 2)[:, :4], torch.cat([X, X])[::1][:3]),
    "numpy": (X, X.numpy(), np.asfortranarray(X.numpy()), X.numpy().astype(">f8")),
    "gradients": (X, X.clone().requires_grad_()),
    "bits": (torch.tensor([1 + 1j, 2 + 3j]).conj(), torch.tensor([1 - 1j, 2 - 3j])),
    "sequences": ([1, "a"], (1, "a")),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "numbers": (3, np.int64(3), np.uint8(3)),
    "sparse": (X.to_sparse(), torch.sparse_coo_tensor(X.nonzero().T.flip(1), X[X != 0].flip(0), (3, 4))),
    "zero strides": (torch.ones(1, 1).expand(3, 4), torch.ones(3, 4)),
}

DIFFERENT = [
    *(None, True, False, 0, 1, 0.0, -0.0, 1.0, 0.1, "", "1", "True", b"", b"1", [], [[]], [[], []], [1], [[1]], {}),
    *({"a": 1}, {"a": {}}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, ["a", 1], [["a", 1]], ["ab"], ["a", "b"], {1: "a"}),
    *(Point(1.0), Point(2.0), Point(1.0, X), Spot(1.0), {"x": 1.0, "y": None}, float("nan"), float("inf")),
    *(X, X.float(), X.half(), X.bfloat16(), X.long(), X.int(), X > 0, X.reshape(4, 3), X.reshape(-1), X.T, X + 1e-12),
    *(X[:0], X[:, :0], torch.tensor(0.0), torch.tensor([0.0]), torch.zeros(1, 1), torch.float32, torch.float64),
    *(X.to_sparse(), X.to_sparse_csr(), X.to_sparse_csc(), X.to_sparse_bsr((3, 2)), X.to_sparse_bsc((3, 2))),
    *(np.zeros(2, dtype="M8[s]"), np.zeros(2, dtype="M8[ms]"), np.zeros(2, dtype="i4,i4"), np.array([], "U3")),
    *(np.array(["a", "b"]), np.array(["ab"]), np.array([b"ab"]), "\ud800", 10**400),
]


@pytest.mark.parametrize("case", SAME)
def test_the_same_content_is_the_same(case: str):
    assert len({fingerprint(value) for value in SAME[case]}) == 1


@pytest.mark.filterwarnings("ignore:Sparse")
def test_other_content_is_different():
    """Kinds, nesting and where one value ends count: nothing is only text that could be put together otherwise."""
    found = [(number, fingerprint(value)) for number, value in enumerate(DIFFERENT)]
    assert [(DIFFERENT[a], DIFFERENT[b]) for (a, one), (b, other) in combinations(found, 2) if one == other] == []
    assert fingerprint("a", "b") != fingerprint("ab") != fingerprint("", "ab")


def test_what_cannot_be_told_is_refused():
    for value in (object(), np.array([object()]), len, {"a": object()}):
        with pytest.raises(TypeError, match="expected"):
            fingerprint(value)


def test_models():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    before, kind = fingerprint(state(model)), architecture(model)
    model[1].running_mean += 1
    buffers = fingerprint(state(model))
    model[0].bias.requires_grad_(False)
    frozen = fingerprint(state(model))
    assert len({before, buffers, frozen}) == 3
    assert architecture(model) == kind != architecture(GCN(2, 3, 3))


def test_a_seal_breaks_when_anything_changes():
    content = {"a": [1, (2.5, None)], "b": {3: "text", 20: "\ud800"}}
    document = sealed(content, X)
    assert unsealed(document, X) == {"a": [1, [2.5, None]], "b": {"3": "text", "20": "\ud800"}}
    changed = [{**document, "a": [1, [2.5, 0]]}, {**document, "c": 1}, {k: document[k] for k in ("a", "digest")}]
    changed += [{**document, "digest": None}, {k: document[k] for k in "ab"}, {**document, "a": [1.0, [2.5, None]]}]
    for other in changed:
        with pytest.raises(ValueError, match="altered or damaged"):
            unsealed(other, X)
    with pytest.raises(ValueError, match="altered or damaged"):
        unsealed(document, X + 1)
    for strange in (None, 3, "text", [1]):
        with pytest.raises((TypeError, ValueError)):
            unsealed(strange)
