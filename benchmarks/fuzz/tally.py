"""What came of all cases: a table of outcomes, and of the unexpected ones each fault once."""

import collections
import re
import shutil
from pathlib import Path

from benchmarks.fuzz.trial import DONE, Outcome

_KEPT = 3  # inputs of the same fault


class Tally:
    """Counts outcomes, and keeps in a folder the inputs of those that are not allowed."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._verdicts: dict[str, collections.Counter[str]] = {}
        self._faults: dict[str, list[Outcome]] = {}
        self._slowest = self._largest = Outcome("", "", "")

    @property
    def count(self) -> int:
        return sum(counter.total() for counter in self._verdicts.values())

    @property
    def unexpected(self) -> int:
        return sum(map(len, self._faults.values()))

    def add(self, outcome: Outcome, room: Path) -> None:
        kind = outcome.case.partition(":")[0]
        self._verdicts.setdefault(kind, collections.Counter())[outcome.verdict] += 1
        if outcome.verdict != DONE:  # such a command compiled a model, as it should
            self._slowest = max(self._slowest, outcome, key=lambda one: one.seconds)
            self._largest = max(self._largest, outcome, key=lambda one: one.megabytes)
        if outcome.fault:
            same = self._faults.setdefault(_signature(outcome), [])
            same.append(outcome)
            if len(same) <= _KEPT:
                _keep(outcome, room, self._folder / outcome.case.replace(":", "-"))

    def figures(self, seconds: float) -> dict:
        return {
            "cases": self.count,
            "unexpected": self.unexpected,
            "outcomes": {kind: dict(counter) for kind, counter in sorted(self._verdicts.items())},
            "faults": [_line(same) for same in self._faults.values()],
            "seconds": round(seconds),
            "cases per second": round(self.count / seconds),
            "slowest": f"{self._slowest.seconds:.2f} s of a processor: {self._slowest.case}",
            "largest": f"{self._largest.megabytes:.0f} MB: {self._largest.case}",
        }

    def table(self) -> str:
        verdicts = sorted({verdict for counter in self._verdicts.values() for verdict in counter})
        width = 2 + max(map(len, verdicts), default=0)
        rows = [" " * 12 + "".join(f"{verdict:>{width}s}" for verdict in verdicts)]
        for kind, counter in sorted(self._verdicts.items()):
            rows.append(f"{kind:12s}" + "".join(f"{counter[one]:{width},d}" for one in verdicts))
        rows += [_line(same) for same in sorted(self._faults.values(), key=len, reverse=True)]
        kept = f"; the inputs are in {self._folder}" if self._faults else ""
        rows.append(f"{self.count:,} cases, {self.unexpected:,} unexpected outcomes{kept}")
        return "\n".join(rows)


def _signature(outcome: Outcome) -> str:
    """Faults with the same one are the same fault: what was raised where, or what was wrong."""
    if outcome.place:
        return f"{outcome.verdict} {outcome.place}"
    kind, words = outcome.case.partition(":")[0], outcome.fault.partition(":")[0]
    return f"{kind} {outcome.verdict} {re.sub('[0-9]+', '', words)[:40]}"


def _line(same: list[Outcome]) -> str:
    first = same[0]
    where = f" at {first.place}" if first.place else ""
    example = f"[{first.case}: {first.what[:100]}]"
    return f"{len(same):6,d} × {first.verdict}{where}: {first.fault[:200]} {example}"


def _keep(outcome: Outcome, room: Path, folder: Path) -> None:
    shutil.copytree(room, folder, symlinks=True, dirs_exist_ok=True, ignore=_not_files)
    lines = (outcome.case, outcome.what, f"{outcome.verdict}: {outcome.fault}", outcome.trace)
    (folder / "fault.txt").write_text("\n".join(lines) + "\n", errors="backslashreplace")


def _not_files(folder: str, names: list[str]) -> list[str]:
    """Pipes and devices: copying one would wait for ever."""
    paths = [Path(folder) / name for name in names]
    return [p.name for p in paths if not (p.is_symlink() or p.is_file() or p.is_dir())]
