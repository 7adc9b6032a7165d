"""Evaluations as text for a person: one in full, several in a table."""

from collections.abc import Sequence

from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.evaluation.scores import Scores
from vit_jax.printable import printable


def describe(evaluation: Evaluation) -> str:
    """Everything about one model."""
    lines = [
        f"{printable(evaluation.checkpoint)}: {evaluation.model or 'a model'}, "
        f"{evaluation.parameters:,} parameters, at {_size(evaluation)}",
        f"{printable(evaluation.dataset)} {evaluation.split}: {evaluation.count:,} examples",
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
    rows = [
        {"checkpoint": one.checkpoint, "size": _size(one), "data": f"{one.dataset} {one.split}"}
        | _figures(one)
        for one in evaluations
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [columns, *([printable(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def class_table(scores: Scores, class_names: Sequence[str], most: int = 20) -> str:
    """Accuracy of each class as lines; the worst ones where there are many."""
    names = map(printable, class_names)
    classes = zip(scores.class_accuracy, names, scores.class_count, strict=True)
    rows = sorted((share, name, count) for share, name, count in classes if share is not None)
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
        if probes.knn:
            shares[f"{probes.knn['neighbors']}-NN"] = probes.knn["accuracy"]
    figures = {name: f"{value:.2%}" for name, value in shares.items() if value is not None}
    return figures | ({"loss": f"{scores.loss:.4f}"} if scores else {})


def _size(evaluation: Evaluation) -> str:
    return "×".join(map(str, evaluation.resolution))
