"""Another choice of what is recomputed, where a plan fits in the order without copies and its
finished program does not.

What a copy waits for keeps values of its own in memory, which no problem within a limit knows: a
value less to recompute may lower the peak. With the shardings as they are, one value after another
is kept instead of recomputed, or recomputed instead of kept, as long as the program holds less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardopt.solve.assignment.problem import Problem, Solution
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.start import can_recompute
from shardopt.solve.sharding.intra_op.finished import finished
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan

# Operations that all programs of one search may have, which take about 50 us each. A small problem
# is searched to the end.
_MOST_OPS = 50_000


@dataclass(eq=False)
class FewerBytes:
    """Searches from one plan after another, until the work is spent."""

    model: BudgetModel
    left: int = _MOST_OPS

    def within(
        self, problem: Problem, solution: Solution, plan: IntraOpPlan, limit: int
    ) -> tuple[Solution, IntraOpPlan]:
        """A solution like that of `plan` whose program holds less, no more than `limit` where that
        is found, and its plan; the same two where there is none. `problem` is one of the
        model's."""
        recomputed = {remat.tensor for remat in plan.rematerialized}
        fresh = frozenset(copy for copy in plan.fresh if copy[0] not in recomputed)
        best = self._counted(plan)
        improved = True
        while improved:
            improved = False
            for number in range(len(self.model.choices)):
                if best.peak_bytes <= limit or self.left <= 0:
                    return solution, best
                other = self._other(problem, solution, number)
                if other is None:
                    continue
                held = self._counted(self.model.decode(other, fresh))
                if held.peak_bytes < best.peak_bytes:
                    solution, best, improved = other, held, True
        return solution, best

    def _other(self, problem: Problem, solution: Solution, number: int) -> Solution | None:
        """The value of one candidate decided the other way, where that is possible."""
        choice, node = list(solution.choice), self.model.first_choice + number
        recomputed = choice[node] % 2 == 1
        if not recomputed and not can_recompute(self.model, problem, choice, node):
            return None
        choice[node] += -1 if recomputed else 1
        return replace(solution, choice=tuple(choice))

    def _counted(self, plan: IntraOpPlan) -> IntraOpPlan:
        """With what its program holds, or the order without copies where that is more."""
        self.left -= len(plan.order)
        program = finished(self.model.base, plan)
        return program if program.peak_bytes >= plan.peak_bytes else plan
