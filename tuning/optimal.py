"""Which trials of a study are the best. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuning.study import Goal, Metric, Study, Trial


def list_optimal(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The best completed trial, of equal ones the first; of several metrics the Pareto front.

    In the order of their numbers.
    """
    ordered = sort_by_objective(study, trials)
    if len(study.metrics) == 1:
        return ordered[:1]
    front: list[Trial] = []
    scores: list[tuple[float, ...]] = []
    # None is dominated by one that comes after it.
    for trial in ordered:
        score = _read_scores(study.metrics, trial)
        if not any(_dominates(other, score) for other in scores):
            front.append(trial)
            scores.append(score)
    return sorted(front, key=lambda trial: trial.number)


def sort_by_objective(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The completed trials that have all metrics, best first: by the first metric, then by the others."""
    measured = [trial for trial in trials if has_objectives(study, trial)]
    return sorted(
        measured, key=lambda trial: (*(-score for score in _read_scores(study.metrics, trial)), trial.number)
    )


def has_objectives(study: Study, trial: Trial) -> bool:
    if not trial.is_completed or trial.infeasible or trial.final is None:
        return False
    return all(metric.name in trial.final.values for metric in study.metrics)


def find_sign(metric: Metric) -> float:
    """What makes a value a score, of which the greater is the better."""
    return 1.0 if metric.goal is Goal.MAXIMIZE else -1.0


def _read_scores(metrics: Sequence[Metric], trial: Trial) -> tuple[float, ...]:
    if trial.final is None:
        raise ValueError(f"trial {trial.number} has no final measurement")
    return tuple(find_sign(metric) * trial.final.values[metric.name] for metric in metrics)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine >= its for mine, its in zip(one, other, strict=True))
