"""Fuzzing: a fixed budget of cases, and again everything that it ever found."""

import itertools
import shlex
from pathlib import Path

import pytest

from benchmarks.fuzz import cases, commands, corpus, seeds, trial, workers

CORPUS = Path(__file__).parents[1] / "fuzz_corpus"
COMMAND_LINES = (CORPUS / "commands.txt").read_text().splitlines()
FILES = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/**/*") if path.is_file())


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    seeds.make(folder)
    return folder


def test_no_case_of_a_fixed_budget_has_an_unexpected_outcome(good, tmp_path):
    names = itertools.islice(cases.names(None, seed=0), 500)
    outcomes = [outcome for outcome, _ in workers.outcomes(names, good, tmp_path, jobs=2)]
    assert len(outcomes) == 500
    assert {outcome.verdict for outcome in outcomes} >= {"same", "read", "refused"}
    assert not [f"{one.case} {one.what}: {one.fault}" for one in outcomes if one.fault]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_what_was_found_once_stays_mended(file, good, tmp_path):
    outcome = trial.run(str(file), corpus.again(CORPUS / file, CORPUS, good, tmp_path), tmp_path)
    assert not outcome.fault, outcome.trace


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_that_once_failed_is_answered(line, good, tmp_path, no_compilation_cache):
    name, *argv = shlex.split(line)
    outcome = trial.run(line, commands.prepared(name, argv, seeds.read(good), tmp_path), tmp_path)
    assert not outcome.fault, outcome.trace


def test_a_wrong_result_another_error_and_too_much_memory_are_faults(tmp_path):
    def wrong() -> str:
        raise trial.Wrong("other numbers")

    def lazy() -> str:
        return {}["card"]

    def greedy() -> str:
        return "read" if b"x" * 700_000_000 else ""

    def found(run) -> str:
        return trial.run("x:0.0", trial.Trial("", run), tmp_path).verdict

    assert (found(wrong), found(lazy), found(greedy)) == ("wrong", "KeyError", "memory")
