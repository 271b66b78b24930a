from __future__ import annotations

import pytest

from shardwise import errors


def test_the_tree_and_its_exit_codes():
    assert issubclass(errors.InputError, errors.ShardwiseError)
    assert issubclass(errors.UnknownNameError, errors.InputError)
    assert issubclass(errors.FileError, errors.InputError)
    assert errors.InputError("x").exit_code == 2
    assert errors.MissingExtraError("the page", "web").exit_code == 2
    assert errors.InfeasibleError("nothing fits").exit_code == 1


def test_one_fault_is_a_sentence():
    assert str(errors.InputError(errors.Fault("strategy.tp", "0 is too small"))) == "strategy.tp: 0 is too small"


def test_many_faults_are_a_list():
    error = errors.InputError([errors.Fault("a", "x"), errors.Fault("b", "y")], title="file.toml")
    assert str(error) == "file.toml: 2 faults\n  - a: x\n  - b: y"
    assert len(error.faults) == 2


def test_an_unknown_name_offers_the_nearest():
    assert "did you mean h100" in str(errors.UnknownNameError("GPU", "h10", ["h100", "a100", "v100"]))


def test_an_unknown_name_far_from_all_lists_some():
    message = str(errors.UnknownNameError("GPU", "zzzz", [f"gpu-{i}" for i in range(20)]))
    assert "known: gpu-0" in message
    assert "8 more" in message


def test_a_missing_extra_says_what_to_type():
    assert "pip install 'shardwise[web]'" in str(errors.MissingExtraError("the page", "web"))


def test_a_file_error_names_the_file():
    with pytest.raises(errors.ShardwiseError, match=r"plan\.json: there is no such file"):
        raise errors.FileError("plan.json", "there is no such file")
