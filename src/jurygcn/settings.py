"""The settings of a jury: how jurors are found, how they vote, and where the work runs.

Each object checks its own values when it is made. ``Jury`` checks what depends on the model and the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jurygcn.checks import check_choice, check_count, check_real, in_short
from jurygcn.choices import CURVATURES, LEAVE_OUT, VOTES
from jurygcn.conformal.predictions import parse_memory
from jurygcn.curvature import DECAYS
from jurygcn.errors import SettingError
from jurygcn.linalg import Solver, check_solver
from jurygcn.parallel import check_parallel

MOST_MASKS, MOST_ITERATIONS = 10_000, 1000
BALLOT_SHARE = 8  # one part in so many of the memory is for ballots


@dataclass(frozen=True)
class LeaveOut:
    """How jurors are found: ``Jury(..., leave_out=LeaveOut("influence", solver="cg"))``.

    Args:
        how: "newton" (one Newton step of the leave-one-out problem), "influence" (the paper's estimate with the errata
            corrected), "retrain" (every juror is trained, as ``Jury(retraining=...)`` says), or "printed" (the paper's
            formulas as printed, with errata E1 to E3 and the curvature of Theorem 1).
        curvature: "ggn", "hessian" or "printed". Newton jurors need "ggn"; printed ones always take "printed".
        solver: "auto", "dual", "direct", "cg", "minres", "neumann", or a solver object with its own settings.
        decay: the weight decay in the curvature: "effective" (for each weight matrix the one at which the trained
            parameters are a minimum: right also for models that stopped early or have dropout), "stated" (the one that
            the caller states, as in the paper), or "auto": stated for a jurygcn.GCN without dropout and for jurors
            other than Newton's, effective for all others and wherever no weight decay is stated.
        damping: a number that is added to the curvature's diagonal.
        max_jurors: the number of jurors, drawn at random; None takes one per label, or 500 where solver="auto" finds
            no room for a factorisation, because each juror then needs its own iterative solves. The other labels still
            train the model, so label sets keep their meaning with n = ``max_jurors``. They get noisier, and no level
            below 1 / (max_jurors + 1) can be asked for.
        dropout_masks: the draws of dropout over which gradients and curvature are averaged; 0 takes the model in eval
            mode. None takes 0 with the effective decay, which accounts for dropout, and else 8 for a model that has
            dropout (4 where neighbourhoods are large).
        corrected_by: the number of jurors that are retrained, as ``Jury(retraining=...)`` says, to set the step length
            of all others; for models that stopped early or have batch normalisation.
        iterations: the most Newton iterations of a Newton juror. After the first one the others find the minimum of the
            leave-one-out loss of the network that is linear in its parameters; they end when all jurors are there,
            mostly after 4 to 8. Votes are those of the network itself.
    """

    how: str = "newton"
    curvature: str = "ggn"
    solver: str | Solver = "auto"
    decay: str = "auto"
    damping: float = 0.0
    max_jurors: int | None = None
    dropout_masks: int | None = None
    corrected_by: int = 0
    iterations: int = 1

    def __post_init__(self) -> None:
        check_choice(self.how, "leave_out", LEAVE_OUT)
        check_count(self.corrected_by, "corrected_by", least=0)
        check_count(self.iterations, "iterations", most=MOST_ITERATIONS)
        if self.iterations > 1 and self.how != "newton":
            raise SettingError(
                f"expected leave_out='newton' with iterations={self.iterations}, got {self.how!r}; leave iterations out"
            )
        if self.dropout_masks is not None:
            check_count(self.dropout_masks, "dropout_masks", least=0, most=MOST_MASKS)
        if self.corrected_by and self.how not in ("newton", "influence"):
            raise SettingError(
                f"expected leave_out='newton' or 'influence' with corrected_by, got {self.how!r}; leave corrected_by "
                "out"
            )
        check_choice(self.curvature, "curvature", CURVATURES)
        check_solver(self.solver)
        check_choice(self.decay, "decay", ("auto", *DECAYS))
        check_real(self.damping, "damping")
        if self.max_jurors is not None:
            check_count(self.max_jurors, "max_jurors")
        if self.how == "newton" and self.curvature != "ggn":
            raise SettingError(
                f"expected curvature='ggn' for leave_out='newton', got {self.curvature!r}; use curvature='ggn' or "
                "leave_out='influence'"
            )
        if self.how == "printed" and self.curvature == "hessian":
            raise SettingError(
                "expected curvature='printed' for leave_out='printed', got 'hessian'; leave curvature out or use "
                "leave_out='influence'"
            )
        if self.how == "printed":
            object.__setattr__(self, "curvature", "printed")
        if self.decay == "effective" and not self.estimated_by_ggn:
            raise SettingError(
                "expected newton or influence jurors with curvature='ggn' for decay='effective', got "
                f"leave_out={self.how!r}, curvature={self.curvature!r}; leave decay out"
            )

    def resolved(self, *, usual: str, stated: bool) -> LeaveOut:
        """The settings without "auto", for an engine's ``usual`` decay and whether any decay is stated."""
        decay = self.decay
        if decay == "auto":
            effective = self.estimated_by_ggn and (not stated or (self.how == "newton" and usual == "effective"))
            decay = "effective" if effective else "stated"
        masks = 0 if self.dropout_masks is None and decay == "effective" else self.dropout_masks
        return replace(self, decay=decay, dropout_masks=masks)

    @property
    def estimated_by_ggn(self) -> bool:
        """Whether jurors are estimated with the Gauss-Newton curvature."""
        return self.how in ("newton", "influence") and self.curvature == "ggn"

    @property
    def printed(self) -> bool:
        """Whether the paper's formulas are taken as printed."""
        return self.how == "printed"

    @classmethod
    def of(cls, given: str | LeaveOut) -> LeaveOut:
        """The settings that ``Jury(leave_out=given)`` stands for."""
        if isinstance(given, str):
            return cls(given)
        if not isinstance(given, LeaveOut):
            raise SettingError(
                f"expected leave_out to be one of {', '.join(LEAVE_OUT)} or a LeaveOut, got {in_short(given)}; "
                "choose one"
            )
        return given


@dataclass(frozen=True)
class Votes:
    """How jurors vote: ``Jury(..., votes=Votes("linearized", rank=64))``.

    Args:
        how: "exact" (one forward pass per juror), "linearized" (to first order, in ``rank`` common directions: for
            thousands of labels or millions of nodes), or "auto", which linearises above a few billion ballots.
        rank: the number of directions that linearised jurors share. ``jury.jurors.discarded`` is the share of the
            jurors' steps outside of these directions. "auto" takes the fewest of 2, 4, ..., 128 with which p-values
            change by at most 0.002, checked on a sample of nodes; ``loo_variance`` and ``label_flips`` are then too
            small, because they need more directions than p-values do.
    """

    how: str = "auto"
    rank: int | str = 128

    def __post_init__(self) -> None:
        check_choice(self.how, "votes", VOTES)
        if self.rank != "auto":
            if isinstance(self.rank, str):
                raise SettingError(f"expected rank as a whole number or 'auto', got {in_short(self.rank)}; change it")
            check_count(self.rank, "rank")

    @classmethod
    def of(cls, given: str | Votes) -> Votes:
        """The settings that ``Jury(votes=given)`` stands for."""
        if isinstance(given, str):
            return cls(given)
        if not isinstance(given, Votes):
            raise SettingError(
                f"expected votes to be one of {', '.join(VOTES)} or a Votes, got {in_short(given)}; choose one"
            )
        return given


@dataclass(frozen=True)
class Run:
    """Where the work runs, and what it may use: ``Jury(..., run=Run(parallel=4, memory="500MB"))``.

    Args:
        parallel: where ballots are counted: None (in this process, or where ``joblib.parallel_config`` says), "serial",
            a number of processes, or "dask://host:port". The verdict is the same.
        memory: what ``fit`` and ``verdict`` may use on top of the graph, the model and Python itself: matrices,
            derivatives, jurors and ballots. The solver is chosen to stay within it, and what cannot is refused before
            it starts. An eighth of it is for the ballots of one batch of jurors, in each process that counts. Less than
            256 MB is never refused.
        progress: show a bar on stderr for work that takes over a second, and say what work of over five seconds will
            cost before it starts.
    """

    parallel: int | str | None = None
    memory: str = "8GB"
    progress: bool = False

    def __post_init__(self) -> None:
        check_parallel(self.parallel)
        parse_memory(self.memory)
        if not isinstance(self.progress, bool):
            raise SettingError(f"expected progress to be True or False, got {in_short(self.progress)}; choose one")

    @property
    def bytes(self) -> float:
        """``memory`` as a number."""
        return parse_memory(self.memory)

    @property
    def ballots(self) -> str:
        """The memory for the ballots of one batch of jurors."""
        return f"{min(max(1, int(self.bytes / BALLOT_SHARE)), 10**17)}B"

    @classmethod
    def of(cls, given: int | str | Run | None) -> Run:
        """The settings that ``Jury(run=given)`` stands for."""
        if isinstance(given, Run):
            return given
        if given is not None and not isinstance(given, int | str):
            raise SettingError(
                "expected run to be 'serial', a number of processes, 'dask://host:port' or a Run, got "
                f"{in_short(given)}; choose one"
            )
        return cls(given)
