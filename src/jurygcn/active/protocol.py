"""The protocol of a run: the number of labels after each step."""

from __future__ import annotations

from dataclasses import dataclass

from torch_geometric.data import Data

from jurygcn.errors import SettingError

# the paper's initial labels, budget and step
PAPER = {"cora": (10, 100, 20), "citeseer": (10, 100, 20), "pubmed": (5, 50, 10), "reddit": (20, 250, 50)}
OTHER = (10, 100, 20)  # for all other graphs


@dataclass(frozen=True)
class Schedule:
    """The number of labels after each step.

    The paper does not state whether its query sizes count the initial labels. With ``count_initial`` they do:
    the number of labels starts at ``initial`` and then takes the multiples of ``step`` up to ``budget``. Without it,
    each step queries ``step`` nodes, ``budget`` in total, in addition to the initial labels. The last ``explored``
    labels are those drawn at random before the run.
    """

    initial: int
    budget: int
    step: int
    count_initial: bool = True
    explored: int = 0

    def __post_init__(self) -> None:
        if self.initial < 0 or self.step < 1:
            raise SettingError(
                f"expected initial of at least 0 and a step of at least 1, got {self.initial} and {self.step}; "
                "change them"
            )
        if self.budget < 1 or (self.count_initial and self.budget <= self.initial):
            raise SettingError(
                f"expected a budget above the {self.initial} initial labels, got {self.budget}; raise it, or pass "
                "count_initial=False to query the budget in addition to the initial labels"
            )

    @classmethod
    def of(
        cls, data: Data, *, initial: int | None, budget: int | None, step: int | None, count_initial: bool
    ) -> Schedule:
        """A schedule with default numbers where none are given: the paper's for its graphs, ``OTHER`` for the rest."""
        known = PAPER.get(str(getattr(data, "catalog_name", "")), OTHER)
        first, last, stride = (u if given is None else given for given, u in zip((initial, budget, step), known))
        return cls(first, last, stride, count_initial)

    @property
    def last(self) -> int:
        """The number of labels at the end of the run."""
        return self.budget if self.count_initial else self.initial + self.budget

    @property
    def sizes(self) -> list[int]:
        """The number of labels after each step. The first is the number of initial labels."""
        budget, drawn = self.budget - self.explored, [self.last] * (self.explored > 0)
        if self.count_initial:
            later = [size for size in range(self.step, budget, self.step) if size > self.initial]
            return [self.initial, *later, budget, *drawn]
        return [*(self.initial + size for size in (0, *range(self.step, budget, self.step), budget)), *drawn]
