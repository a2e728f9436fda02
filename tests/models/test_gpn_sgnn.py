"""The parts of S-GNN and GPN against naive references."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.nn.functional import softplus
from torch_geometric.data import Data

from cases import GRAPHS, graph
from jurygcn.baselines import dirichlet
from jurygcn.baselines.flows import RadialFlows
from jurygcn.baselines.gpn import GPN, diffuse, graph_inputs, uncertain_cross_entropy
from jurygcn.baselines.sgnn import EvidenceLoss, concentrations, graph_kernel_prior
from jurygcn.graph.propagation import normalized_adjacency
from jurygcn.graph.sparse import SparseMatrix

# --- flows --------------------------------------------------------------------------------------------------------


def flows(classes: int = 3, dimensions: int = 5, length: int = 4, strength: float = 5.0) -> RadialFlows:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = RadialFlows(classes, dimensions, length=length).double()
        with torch.no_grad():
            made.strengths.mul_(strength)  # 5 is far from the identity
    return made


def travel(flow: RadialFlows, z: Tensor, c: int) -> Tensor:
    """One point through the transforms of class c, step by step."""
    for centre, radius, strength in zip(flow.centres[:, c], flow.radii[:, c], flow.strengths[:, c]):
        a = softplus(radius)
        away = z - centre
        z = z + (softplus(strength) - a) / (a + away.norm()) * away
    return z


def test_log_determinant_equals_autograd():
    flow = flows()
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = flow(z)
    for i in range(6):
        for c in range(3):
            J = jacobian(lambda point, c=c: travel(flow, point, c), z[i])
            normal = -0.5 * travel(flow, z[i], c).square().sum() - 2.5 * math.log(2 * math.pi)
            torch.testing.assert_close(found[i, c], normal + torch.linalg.slogdet(J)[1])


def test_a_flow_is_a_density():
    """Integrates to one, by the midpoint rule on a fine grid."""
    flow = flows(classes=2, dimensions=2, strength=1.0)
    step = 0.1
    axis = torch.arange(-30, 30, step, dtype=torch.float64) + step / 2
    mass = flow(torch.cartesian_prod(axis, axis)).detach().exp().sum(dim=0) * step**2
    torch.testing.assert_close(mass, torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-3)


# --- prior ----------------------------------------------------------------------------------------------------------


def hops_from(data: Data, source: int) -> dict[int, int]:
    neighbours: dict[int, list[int]] = {v: [] for v in range(int(data.num_nodes))}
    for a, b in data.edge_index.T.tolist():
        neighbours[a].append(b)
    found, queue = {source: 0}, deque([source])
    while queue:
        v = queue.popleft()
        for u in neighbours[v]:
            if u not in found:
                found[u] = found[v] + 1
                queue.append(u)
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("width", [1.0, 2.0])
def test_kernel_prior_equals_naive_search(name: str, width: float):
    data = graph(name)
    nodes = torch.tensor([0, 2, 5])
    expected = np.ones((int(data.num_nodes), 3))
    for source in nodes.tolist():
        for v, d in hops_from(data, source).items():
            expected[v, int(data.y[source])] += math.exp(-(d**2) / (2 * width**2))
    found = graph_kernel_prior(data, nodes, classes=3, width=width)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


# --- losses ---------------------------------------------------------------------------------------------------------


def test_evidence_loss_is_its_three_terms():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    prior = 1 + torch.rand(7, 3, generator=generator, dtype=torch.float64)
    teacher = torch.softmax(torch.randn(7, 3, generator=generator, dtype=torch.float64), dim=1)
    nodes, y = torch.tensor([1, 4]), torch.tensor([2, 0])
    loss = EvidenceLoss(nodes, y, prior, teacher, prior_weight=0.3)
    alpha = concentrations(logits)
    p = alpha / alpha.sum(dim=1, keepdim=True)
    fit = sum(dirichlet.squared_error(alpha[v : v + 1], c[None]) for v, c in zip(nodes.tolist(), y)) / 2
    kl = torch.distributions.kl_divergence(torch.distributions.Dirichlet(alpha), torch.distributions.Dirichlet(prior))
    taught = sum(float((p[v] * (p[v] / teacher[v]).log()).sum()) for v in range(7)) / 7
    for epoch, ramp in ((1, 1 / 200), (100, 0.5), (200, 1.0), (900, 1.0)):
        expected = float(fit) + 0.3 * float(kl.mean()) + ramp * taught
        assert float(loss(logits, epoch)) == pytest.approx(expected, rel=1e-9)


def test_uncertain_cross_entropy_is_expectation_minus_entropy():
    alpha, y = torch.tensor([[3.0, 1.5], [1.0, 9.0]], dtype=torch.float64), torch.tensor([0, 1])
    distribution = torch.distributions.Dirichlet(alpha)
    expected = dirichlet.cross_entropy(alpha, y) - 0.2 * distribution.entropy()
    torch.testing.assert_close(uncertain_cross_entropy(alpha, y, entropy_weight=0.2), expected)


# --- diffusion, evidence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_diffusion_equals_dense_powers(name: str):
    data = graph(name)
    A = normalized_adjacency(data, dtype=np.float64)
    evidence = torch.rand(int(data.num_nodes), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t, steps = 0.2, 5
    dense = torch.from_numpy(A.toarray())
    powers = [torch.linalg.matrix_power((1 - t) * dense, k) for k in range(steps + 1)]
    expected = t * sum(power @ evidence for power in powers[:-1]) + powers[-1] @ evidence
    matrix = SparseMatrix(A, dtype=torch.float64, device=torch.device("cpu"))
    torch.testing.assert_close(diffuse(evidence, matrix, steps=steps, teleport=t), expected)


def test_evidence_is_prior_times_density_times_budget():
    data = graph("two_block")
    model = GPN(4, 3, hidden=6, latent=2, steps=2).eval()
    model.class_shares = torch.tensor([0.5, 0.5, 0.0])
    x, adjacency = graph_inputs(data)
    with torch.no_grad():
        found = model(x, adjacency)
        density = model.flows(model.encode(x)).exp()
    budget = math.exp(0.5 * 2 * math.log(4 * math.pi))
    torch.testing.assert_close(found.features[:, :2], density[:, :2] * 0.5 * budget)
    assert bool((found.features[:, 2] < 1e-12).all()), "a class without labels gets no evidence"
    assert bool((found.alpha >= 1).all())


def test_binary_features_have_rows_of_sum_one():
    data = graph("path")
    data.x = torch.tensor([[0.0, 3, 1, 0, 0, 0, 0, 0, 0]] * 6)
    x, _ = graph_inputs(data, binarize=True)
    torch.testing.assert_close(x.to_dense()[0], torch.tensor([0, 0.5, 0.5, 0, 0, 0, 0, 0, 0]))
