"""The jackknife: jurors, their ballots, and the verdict."""

from jurygcn.jackknife.checkup import Fidelity, Health
from jurygcn.jackknife.jury import Jury
from jurygcn.jackknife.retrain import Retraining
from jurygcn.jackknife.verdict import Verdict

__all__ = ["Fidelity", "Health", "Jury", "Retraining", "Verdict"]
