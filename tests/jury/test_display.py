"""Juries and verdicts in notebooks: words that are true, markup that is text, figures with the right bars."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from cases import Case
from jurygcn import Jury, Retraining, Verdict
from jurygcn.conformal.claims import Agreement
from jurygcn.errors import DataError, SettingError


def jury_of(loss: str = "cross_entropy") -> Jury:
    engine = Case("two_block", 2, loss).engine(weight_decay=0.05, trained=True)
    return Jury(engine.model, engine.data, engine.train_nodes, loss=loss, weight_decay=0.05)


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return jury_of().fit().verdict()


@pytest.fixture(scope="module")
def regression() -> Verdict:
    found = jury_of("mse").fit().verdict(alpha=0.2)
    return replace(found, outputs=found.outputs[:, :1], lower=found.lower[:, 0], upper=found.upper[:, 0])


def test_a_jury_in_words():
    jury = jury_of()
    assert repr(jury) == (
        f"Jury(model: GCN, {jury.engine.num_parameters} parameters; graph: 12 nodes; labels: 5; "
        "jurors: 5 by newton, exact, not fitted: call fit())"
    )
    assert not jury.fitted
    jury.fit()
    assert repr(jury).endswith("jurors: 5 by newton, exact)")
    assert "<td style='text-align:left'>12 nodes</td>" in jury._repr_html_()


def test_a_verdict_in_words(verdict, regression):
    sizes = verdict.set_size(0.1).double()
    assert "; nodes: 12; jurors: 5; classes: 3;" in repr(verdict)
    assert f"{float(sizes.mean()):.2f} labels on average" in repr(verdict)
    assert "level 0.2, median width" in repr(regression)
    page = verdict._repr_html_()
    assert page.count("<tr") >= 5 + 1 + 5
    first = int(verdict.ranking()[0])
    assert f"<td>{first}</td>" in page
    assert "<th>lower</th>" in regression._repr_html_()


def test_distrust_is_said_first(verdict):
    """Where nothing is claimed, that is the first thing in words and in notebooks; else the claim has its place."""
    assert repr(verdict).startswith("Verdict(caution: no coverage is claimed. With 5 jurors no label can be excluded")
    assert repr(verdict).count("no coverage is claimed") == 1
    page = verdict._repr_html_()
    assert page.index("no coverage is claimed") < page.index("nodes")
    many = replace(verdict, num_jurors=verdict.num_jurors + 100)
    assert repr(many).startswith("Verdict(nodes: 12;")
    assert "coverage: the target is that 90% contain the truth" in repr(many)
    compared = many.compared(Agreement(0.5, 0.4, 0.1, trusted=False))
    assert repr(compared).startswith("Verdict(caution: no coverage is claimed. Estimated jurors correlate 0.500")


def test_a_regression_says_it_too(regression):
    assert repr(regression).startswith("Verdict(nodes: 12;")
    assert "coverage: the target is that 80% contain the truth" in repr(regression)
    compared = regression.compared(Agreement(0.5, 0.4, 0.1, trusted=False))
    assert repr(compared).startswith("Verdict(caution: no coverage is claimed.")


def test_a_jury_that_fidelity_distrusts_says_so_first():
    jury = jury_of().fit()
    assert "caution" not in repr(jury)
    jury.fidelity(5, retraining=Retraining(epochs=1))  # another training: it does not agree
    assert repr(jury).startswith("Jury(caution: do not trust the jurors. Estimated jurors correlate")


def test_a_notebook_shows_the_picture_without_pyplot(verdict):
    """IPython asks for _repr_png_; a bare matplotlib figure has none until pyplot has registered one."""
    for figure in (verdict.plot(), verdict.plot_node(0)):
        assert isinstance(figure, Figure)
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_names_are_escaped(verdict):
    hostile = replace(verdict, names=["<script>alert(1)</script>", "a & b", "$x$"])
    page = hostile._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    hostile.plot_node(0).savefig("/dev/null", format="png")  # draws: a formula in a name would not parse


def test_plot(verdict, regression):
    figure = verdict.plot(alpha=0.3)
    assert isinstance(figure, Figure)
    scores, sizes = figure.axes
    assert sum(bar.get_height() for bar in scores.patches) == 12
    expected = torch.bincount(verdict.set_size(0.3), minlength=4).tolist()
    assert [bar.get_height() for bar in sizes.patches] == expected
    assert "0.3" in sizes.get_title()
    assert len(regression.plot().axes) == 2


def test_plot_node(verdict, regression):
    (axes,) = verdict.plot_node(4, alpha=0.4).axes
    inside = verdict.label_sets(0.4)[4]
    filled, hatched = axes.containers
    assert [bar.get_width() for bar in filled] == pytest.approx(verdict.p_values[4][inside].tolist())
    assert [bar.get_width() for bar in hatched] == pytest.approx(verdict.p_values[4][~inside].tolist())
    assert "Node 4" in axes.get_title()
    assert "Node 3" in regression.plot_node(3).axes[0].get_title()


def test_refusals(verdict):
    with pytest.raises(DataError, match=r"got 99; choose one of verdict\.nodes"):
        verdict.plot_node(99)
    with pytest.raises(SettingError, match="alpha"):
        verdict.plot(alpha=1.5)
    several = jury_of("mse").fit().verdict(alpha=0.2)
    assert "Most uncertain" not in several._repr_html_()
    for draw in (several.plot, lambda: several.plot_node(0)):
        with pytest.raises(SettingError, match="got 3 targets"):
            draw()
