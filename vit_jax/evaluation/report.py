"""Evaluations as text for a person: one in full, several in a table."""

from collections.abc import Sequence

from vit_jax.evaluation.model import Evaluation
from vit_jax.evaluation.scores import Scores


def describe(evaluation: Evaluation) -> str:
    """Everything about one model."""
    height, width = evaluation.resolution
    lines = [
        f"{evaluation.checkpoint}: {evaluation.model or 'a model'}, {evaluation.parameters:,} "
        f"parameters, at {height}×{width}",
        f"{evaluation.dataset} {evaluation.split}: {evaluation.count:,} examples",
    ]
    if evaluation.scores is None:
        lines.append("  its classes are not the model's: only features were evaluated")
    figures = _figures(evaluation)
    longest = max(map(len, figures), default=0)
    lines += [f"  {name:<{longest}}  {value}" for name, value in figures.items()]
    if probes := evaluation.probes:
        lines.append(f"  learned from {probes.train_split}: {probes.train_count:,} examples")
    if evaluation.scores:
        lines.append(class_table(evaluation.scores, evaluation.classes))
    return "\n".join(lines)


def compare(evaluations: Sequence[Evaluation]) -> str:
    """A row for each checkpoint, a column for each figure."""
    rows = []
    for evaluation in evaluations:
        height, width = evaluation.resolution
        data_set = f"{evaluation.dataset} {evaluation.split}"
        start = {"checkpoint": evaluation.checkpoint, "size": f"{height}×{width}", "data": data_set}
        rows.append(start | _figures(evaluation))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def class_table(scores: Scores, class_names: Sequence[str], most: int = 20) -> str:
    """Accuracy of each class as lines; the worst ones where there are many."""
    rows = sorted(
        (accuracy, name, count)
        for accuracy, name, count in zip(
            scores.class_accuracy, class_names, scores.class_count, strict=True
        )
        if accuracy is not None
    )
    title = f"the {most} worst of {len(rows)} classes" if len(rows) > most else "classes"
    width = max((len(name) for _, name, _ in rows[:most]), default=0)
    lines = [f"  {name:<{width}}  {100 * acc:6.2f} % of {n:,}" for acc, name, n in rows[:most]]
    return "\n".join([f"Accuracy of {title}:", *lines])


def _figures(evaluation: Evaluation) -> dict[str, str]:
    """The figures of an evaluation as text, by the names a person knows them by."""
    scores, probes = evaluation.scores, evaluation.probes
    shares: dict[str, float | None] = {}
    if scores:
        shares |= {
            "top-1": scores.accuracy,
            "top-5": scores.accuracy_top5,
            "per label": scores.accuracy_per_label,
            "calibration error": scores.calibration_error,
        }
    if probes:
        shares |= {f"{shots}-shot": value for shots, value in (probes.few_shot or {}).items()}
        shares[f"{probes.neighbors}-NN"] = probes.knn
    figures = {name: f"{value:.2%}" for name, value in shares.items() if value is not None}
    return figures | ({"loss": f"{scores.loss:.4f}"} if scores else {})
