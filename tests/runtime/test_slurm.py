import pytest

from opabinia.runtime.slurm import first_host, is_step, launched_rank, port_for, rendezvous_address, torchrun_variables

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}


NODES = {
    **{"one": "one", "one,two": "one", "node[001-003,007],other": "node001", "node[7]": "node7", "": ""},
    **{"other,node[1-2]": "other", "a-b[09-10]-ib": "a-b09-ib", "rack[1-2]node[3-4],x": "rack1node3"},
}


def test_first_host() -> None:
    assert {nodes: first_host(nodes) for nodes in NODES} == NODES


def test_a_task_of_a_step() -> None:
    assert is_step(STEP)
    assert torchrun_variables(STEP) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu003",
        "MASTER_PORT": str(49152 + 4713),
    }
    address = {"MASTER_ADDR": "here", "MASTER_PORT": "1234"}
    assert address.items() <= torchrun_variables({**STEP, **address}).items()
    with pytest.raises(ValueError, match="7 tasks cannot be distributed evenly over 2 nodes"):
        torchrun_variables({**STEP, "SLURM_STEP_NUM_TASKS": "7"})


def test_a_batch_script_is_no_step() -> None:
    """sbatch and salloc set variables of the whole job; only srun starts tasks."""
    shell = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "gpu[003-004]"}
    assert not is_step(shell)
    assert not is_step({**STEP, "SLURM_STEP_NUM_TASKS": "1"})
    assert (launched_rank(shell), launched_rank({}), launched_rank(STEP)) == (0, 0, 5)
    # The rank of an agent takes precedence.
    assert launched_rank({**STEP, "WORLD_SIZE": "2", "RANK": "1"}) == 1
    assert launched_rank({"WORLD_SIZE": "1", "RANK": "1"}) == 0


def test_ports_are_derived_from_job_and_step() -> None:
    ports = [port_for(number) for number in (0, 1, 2**14 - 1, 2**14, 2**31)]
    assert ports == [49152, 49153, 65535, 49152, 49152]
    assert rendezvous_address({**STEP, "SLURM_STEP_ID": "3"})[1] == rendezvous_address(STEP)[1] + 1
