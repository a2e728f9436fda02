"""Parameters without weight decay in the dual, against a dense pseudo-inverse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jurygcn.linalg import Choice, DenseFactor, Direct, Dual, LowRank, choose


def system(seed: int) -> tuple[Tensor, Tensor, int]:
    """Rows in terms of a few rows each, a decay that is zero on a random subset, and the rows of one term.

    Now and then two undecayed parameters do the same, so that a direction is undetermined.
    """
    generator = torch.Generator().manual_seed(seed)
    n, K, P = (int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((3, 9), (1, 4), (10, 80)))
    U = 0.3 * torch.randn(n * K, P, generator=generator, dtype=torch.float64)
    decay = 1e-4 + 0.01 * torch.rand(P, generator=generator, dtype=torch.float64)
    count = int(torch.randint(0, min(P, n * K) // 2 + 1, (1,), generator=generator))
    free = torch.randperm(P, generator=generator)[:count]
    decay[free] = 0.0
    if count > 2:
        U[:, free[0]] = U[:, free[1]]
    return U, decay, K


@pytest.mark.parametrize("solver", [Dual(), Direct()], ids=["dual", "direct"])
@pytest.mark.parametrize("seed", range(60))
def test_dual_and_direct_are_the_pseudo_inverse(seed, solver):
    U, decay, K = system(seed)
    n, P = len(U) // K, U.shape[1]
    inverse = torch.linalg.pinv(torch.diag(decay) + U.T @ U, rtol=1e-10, hermitian=True)
    terms = U.view(n, K, P)
    prepared = solver.prepare(LowRank(decay, DenseFactor(U, K)))
    weights = torch.randn(n, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    some = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:2]
    found = prepared.solve_terms(weights, some, dtype=torch.float64)
    wanted = torch.stack([inverse @ (terms[i].T @ weights[i]) for i in some.tolist()], dim=1)
    torch.testing.assert_close(found.value, wanted, rtol=0.0, atol=1e-9 * float(wanted.abs().max()))
    assert found.residual < 1e-9
    eye = torch.eye(K, dtype=torch.float64)
    retention = torch.stack([eye - term @ inverse @ term.T for term in terms])
    torch.testing.assert_close(prepared.retention(), retention, rtol=0.0, atol=1e-9)
    block = U.T @ torch.randn(len(U), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(prepared.solve(block).value, inverse @ block, rtol=0.0, atol=1e-8)


def test_undetermined_directions_stay_where_they_are():
    """Three logit biases, of which the softmax ignores the sum."""
    shift_free = torch.eye(3, dtype=torch.float64) - 1 / 3
    U = torch.cat(
        [torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), shift_free.repeat(2, 1)], 1
    )
    decay = torch.tensor([0.1] * 4 + [0.0] * 3, dtype=torch.float64)
    found = (
        Dual()
        .prepare(LowRank(decay, DenseFactor(U, 3)))
        .solve_terms(torch.ones(2, 3, dtype=torch.float64), torch.arange(2), dtype=torch.float64)
    )
    torch.testing.assert_close(found.value[4:].sum(dim=0), torch.zeros(2, dtype=torch.float64), rtol=0.0, atol=1e-12)


def test_auto_takes_dual_where_some_parameters_decay():
    U, decay, K = system(5)
    decay[:3] = 0.0
    assert isinstance(choose("auto", LowRank(decay, DenseFactor(U, K))), Choice)
    assert choose("auto", LowRank(decay, DenseFactor(U, K))).name == "dual"
