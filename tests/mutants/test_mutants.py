"""Mutants of the faults that were found: each has its text once, and its test catches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.mutant import Fault, Mutant
from tests.mutants.run import MUTANTS, catch, failing_anyway, tree
from tests.sim.nodes.mutate import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_is_in_its_file_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.text) == 1
    file, _, test = mutant.test.partition("::")
    function = test.rpartition("::")[2].partition("[")[0]
    assert f"def {function}(" in (ROOT / file).read_text("utf-8")


def test_each_class_has_a_mutant_and_each_mutant_its_name() -> None:
    assert {each.fault for each in MUTANTS} == {*Fault}
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)


def test_words_are_read_before_anything_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in ((["--help"], 0), (["no-such-mutant"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code
    assert "usage" in capsys.readouterr().out
    assert main(["--list", MUTANTS[0].name]) == 0
    assert capsys.readouterr().out.endswith(f"/{MUTANTS[0].name}\n")


@pytest.mark.full
def test_each_mutant_is_caught_by_its_test(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert failing_anyway(sorted({each.test for each in MUTANTS}), root) == []
    outcomes = [catch(each, root) for each in MUTANTS]
    assert [(each.mutant.name, each.reason) for each in outcomes if not each.is_caught] == []
