#!/bin/bash
# Elastic multi-node training under SLURM: 2 to 8 machines with 8 GPUs each, requeued after preemption and at the end of
# the time limit. The working directory is on a shared disk.
#
#     sbatch slurm.sh
#
#SBATCH --job-name=opabinia
#SBATCH --nodes=2-8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# --signal    300 s before the time limit all tasks are signaled; the run saves and exits with 143
# --requeue   after a preemption SLURM puts the job back into the queue; its SIGTERM saves, too
# --no-kill   a failed machine does not end the job: the others continue without it

status=0
srun --kill-on-bad-exit=0 --no-kill \
    opabinia train classification/image_folder vars.root=s3://my-bucket/flowers data.batch_size=4096 \
    checkpoint.every=0.5h --nproc 8 --nnodes "2:$SLURM_JOB_NUM_NODES" --resume auto || status=$?

# After the time limit SLURM requeues nothing by itself.
if [ "$status" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
