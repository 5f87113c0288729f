"""Multi-node training on a Ray cluster: one worker of Ray Train per machine runs ``opabinia`` with a process per GPU.

``runs`` is on a disk that all machines share. After a machine is lost, Ray Train starts all workers again, and the run
resumes from its last checkpoint: ``python ray_train.py``, or ``ray job submit -- python ray_train.py``.
"""

import os
import subprocess
import sys
from typing import Any

import ray.train.collective
import ray.util
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

RUN = ["classification/image_folder", "vars.root=s3://my-bucket/flowers", "checkpoint.every=0.5h"]
MACHINES, GPUS = 2, 8
PORT = 29500


def run_on_machine(config: dict[str, Any]) -> None:
    """Run the agent of one machine; a failure is Ray's to retry."""
    context = ray.train.get_context()
    host = ray.train.collective.broadcast_from_rank_zero(ray.util.get_node_ip_address())
    layout = ["--nproc", str(GPUS), "--nnodes", str(context.get_world_size())]
    layout += ["--node-rank", str(context.get_world_rank()), "--rdzv-endpoint", f"{host}:{PORT}"]
    command = [sys.executable, "-m", "opabinia", "train", *RUN, *layout, "--resume", "auto"]
    subprocess.run(command, cwd=config["folder"], check=True)


if __name__ == "__main__":
    DataParallelTrainer(
        run_on_machine,
        train_loop_config={"folder": os.getcwd()},
        scaling_config=ScalingConfig(
            num_workers=MACHINES, use_gpu=True, resources_per_worker={"GPU": GPUS}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=RunConfig(name="opabinia", failure_config=FailureConfig(max_failures=100)),
    ).fit()
