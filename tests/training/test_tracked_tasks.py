"""Tasks of multi-task runs that detect objects and describe their appearance."""

import copy
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.training.run_folder import resolve
from opabinia.training.tracked_tasks import detection_task, detection_tasks, embedding_task


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """The tasks boxes, maps, present, identities and unlabeled."""
    return dict(resolve("multitask/digits").config)


def test_the_only_task_of_a_kind(config: dict[str, Any]) -> None:
    assert (detection_task(config), embedding_task(config)) == ("boxes", "identities")
    assert detection_tasks(config) == ["boxes"]
    assert embedding_task(config, "present") == "present"


def test_runs_of_one_task() -> None:
    config = resolve("detection/digits").config
    assert (detection_task(config), embedding_task(config), detection_tasks(config)) == ("", "", [])
    with pytest.raises(ConfigError, match="--reid-task: the run has one task only"):
        embedding_task(config, "boxes")


def test_a_choice_is_needed(config: dict[str, Any]) -> None:
    changed = copy.deepcopy(config)
    tasks = changed["task"]["tasks"]
    tasks["cars"] = tasks["boxes"]
    del tasks["identities"]
    assert detection_tasks(changed) == ["boxes", "cars"] and detection_task(changed, "cars") == "cars"
    with pytest.raises(
        ConfigError, match=r"--task: 2 of the run's tasks are for object detection.*tasks: boxes, cars$"
    ):
        detection_task(changed)
    with pytest.raises(
        ConfigError, match=r"--reid-task: none of the run's tasks are for re-id.*tasks: boxes, maps, pr"
    ):
        embedding_task(changed)
    with pytest.raises(ConfigError, match=r"--task: there is no task 'boxs'; did you mean 'boxes'\? tasks: boxes"):
        detection_task(config, "boxs")
