"""The files in docs/examples/clusters: required fields, valid scripts, and commands that can be parsed."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from opabinia.cli.command_line import with_resume_value
from opabinia.config import catalog, check, compose
from tests.docs.pages import ROOT
from tests.docs.test_commands import parsed

CLUSTERS = ROOT / "docs" / "examples" / "clusters"
PAGE = ROOT / "docs" / "clusters.md"
CLAIM, JOBSET = yaml.safe_load_all((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8"))
JOB = JOBSET["spec"]["replicatedJobs"][0]
POD = JOB["template"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
TASK = yaml.safe_load((CLUSTERS / "skypilot.yaml").read_text(encoding="utf-8"))
SLURM = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
RAY = (CLUSTERS / "ray_train.py").read_text(encoding="utf-8")
SHELL = {"skypilot setup": TASK["setup"], "skypilot run": TASK["run"], "slurm": SLURM}


def commands() -> Iterator[list[str]]:
    """Yield the words of each ``opabinia`` command; variables and substitutions become 1."""
    yield [re.sub(r"\$\(\w+\)", "1", word) for word in CONTAINER["args"]]
    run = ast.literal_eval(RAY.partition("RUN = ")[2].partition("\n")[0])
    yield [
        "train",
        *run,
        *(f"{name}={'auto' if name == '--resume' else 1}" for name in re.findall(r'"(--[\w-]+)"', RAY)),
    ]
    for text in SHELL.values():
        for line in text.replace("\\\n", " ").splitlines():
            if match := re.match(r"\s*(?:srun .*?)?\bopabinia (.*?)(?: \|\| .*)?$", line):
                yield shlex.split(re.sub(r"\$\([^)]*\)|\$\w+", "1", match[1]))


def test_commands_can_be_parsed_and_their_configs_are_valid() -> None:
    parsed_commands = [parsed(with_resume_value(words)) for words in commands()]
    assert len(parsed_commands) == 4
    assert all(
        arguments["resume"] == "auto" and arguments["nproc"] and arguments["nnodes"] for arguments in parsed_commands
    )
    (recipe,) = {arguments["recipe"] for arguments in parsed_commands}
    overrides = {override for arguments in parsed_commands for override in arguments["overrides"]}
    assert not check(compose(recipe, sorted(overrides)), catalog()).warnings


@pytest.mark.parametrize("name", SHELL)
def test_shell_scripts_have_no_syntax_errors(name: str) -> None:
    for program in (["bash", "-n"], ["shellcheck", "--shell=bash", "-"]):
        if shutil.which(program[0]):
            result = subprocess.run(program, input=SHELL[name], capture_output=True, text=True)
            assert result.returncode == 0, result.stdout + result.stderr


def test_the_jobset_is_consistent() -> None:
    """Check the fields that JobSet and Kubernetes require, and the names that must agree."""
    assert (JOBSET["apiVersion"], JOBSET["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert {"name", "template"} <= JOB.keys() and {"name", "image"} <= CONTAINER.keys()
    assert POD["restartPolicy"] == "Never", "podFailurePolicy needs it"
    spec = JOB["template"]["spec"]
    arguments = dict(word.removeprefix("--").split("=") for word in CONTAINER["args"] if word.startswith("--"))
    assert spec["completions"] == spec["parallelism"] == int(arguments["nnodes"].split(":")[-1])
    assert arguments["nproc"] == CONTAINER["resources"]["limits"]["nvidia.com/gpu"]
    name = JOBSET["metadata"]["name"]
    port = CONTAINER["ports"][0]["containerPort"]
    assert arguments["rdzv-endpoint"] == f"{name}-{JOB['name']}-0-0.{name}:{port}", "JobSet's name of pod 0 of job 0"
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}
    assert POD["volumes"][0]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    variables = {variable["name"] for variable in CONTAINER["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(CONTAINER["args"]))) <= variables
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule] == [[143]]


def test_the_skypilot_task_is_consistent() -> None:
    assert TASK.keys() <= {"name", "num_nodes", "resources", "envs", "setup", "run"}
    assert TASK["resources"]["job_recovery"]["recover_on_exit_codes"] == [143]
    by_skypilot = {"SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS"}
    assert set(re.findall(r"\$\{?([A-Z_]+)", TASK["run"])) == {*TASK["envs"], *by_skypilot}


def test_the_slurm_script_asks_for_a_notice_and_a_requeue() -> None:
    options: dict[str, Any] = dict(
        (match[1], match[2]) for match in re.finditer(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SLURM, re.M)
    )
    assert len(options) == SLURM.count("\n#SBATCH --")
    assert options["ntasks-per-node"] == "1" and "requeue" in options
    number, seconds = options["signal"].split("@")
    assert number in ("USR1", "TERM") and int(seconds) >= 60


def test_the_page_names_every_file_and_extras_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [text, *(path.read_text(encoding="utf-8") for path in CLUSTERS.iterdir() if path.is_file())]
    assert set(re.findall(r"(?:opabinia\[|EXTRAS=)(\w+)", "\n".join(files))) <= extras.keys()
    assert {path.name for path in CLUSTERS.iterdir() if path.is_file()} == set(
        re.findall(r"\(examples/clusters/([\w.]+)\)", text)
    )


def test_the_dockerfile_is_for_both_devices_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ARG DEVICE=cpu$", text, re.M) and re.search(r"^USER (?!0|root)", text, re.M)
    installs = re.findall(r"pip install[^\n\\&]*", text)
    assert installs and all("--constraint constraints.txt" in line and "--no-cache" in line for line in installs)
