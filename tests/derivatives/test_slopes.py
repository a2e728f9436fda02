"""Gram matrices from slopes of low rank, against the sum over all pairs of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jurygcn.derivatives.slopes import factors_of, gram_of_factors

R, h, C, n, V = 37, 4, 7, 5, 11


def slopes_of(rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    A = torch.randn(R, h, rank, generator=generator, dtype=dtype)
    return torch.einsum("rqx,qcx->rqc", A, torch.randn(h, C, rank, generator=generator, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_factors_give_the_slopes(rank, dtype):
    slopes = slopes_of(rank, dtype)
    A, B = factors_of(slopes, most=C // 2)
    assert B.shape == (h, C, rank)
    torch.testing.assert_close(
        torch.einsum("rqx,qcx->rqc", A, B),
        slopes,
        rtol=1e-5 if dtype == torch.float32 else 1e-12,
        atol=1e-5 if dtype == torch.float32 else 1e-12,
    )


def test_slopes_that_were_drawn_in_single_precision():
    factors = factors_of(slopes_of(1, torch.float32).double(), most=C // 2)
    assert factors is not None
    assert factors[1].shape[2] == 1


@pytest.mark.parametrize("more", [1e-3, 1e-9])
def test_a_small_part_of_higher_rank_is_not_dropped(more):
    slopes = slopes_of(1) + more * torch.randn(R, h, C, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert factors_of(slopes, most=C // 2) is None


def test_slopes_of_full_rank_have_no_factors():
    assert factors_of(slopes_of(C), most=C // 2) is None


@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gram_of_factors_is_the_sum_over_pairs_of_rows(rank, at_once):
    slopes = slopes_of(rank)
    generator = torch.Generator().manual_seed(4)
    X = torch.randn(V, 6, generator=generator, dtype=torch.float64)
    places = torch.randint(V, (R,), generator=generator)
    owner = torch.randint(n, (R,), generator=generator).sort().values
    wanted = torch.zeros(n, C, n, C, dtype=torch.float64)
    for r in range(R):
        for s in range(R):
            product = float(X[places[r]] @ X[places[s]]) * slopes[r].T @ slopes[s]
            wanted[owner[r], :, owner[s]] += product
    A, B = factors_of(slopes, most=C // 2)
    nodes = [(places[owner == i], A[owner == i]) for i in range(n)]
    out = torch.empty(n, C, n, C, dtype=torch.float64)
    found = gram_of_factors(X @ X.T, nodes, B, at_once=at_once, out=out)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
