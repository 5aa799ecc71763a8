#!/bin/bash
# One agent on each node; what it runs stands beside this file, in job-N.json.
#SBATCH --job-name=seatrial-llama3.1-70b
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --output=/shared/runs/llama-1/launch/slurm/output-%j.log
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/runs/llama-1
#SBATCH --account=ml
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --time=1:00:00
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclude=node[07,11-12]
#SBATCH --reservation=acceptance
#SBATCH --constraint=h100&ib
#SBATCH --signal=B:TERM@120
#SBATCH --exclusive
#SBATCH --requeue

root=/shared/runs/llama-1
nonce=6e6f6e6365
on_each='[ "$(cat "$1/launch/slurm/nonce" 2>/dev/null)" = "$2" ] || { echo "seatrial: $(hostname) does not see $1" >&2; exit 69; }; exec python3 -I "$1/launch/slurm_node.py" "$1"'

rm -f "$root/launch/slurm/failed"
trap 'touch "$root"/nodes/*/stop' TERM INT USR1 USR2
srun \
  --ntasks-per-node=1 \
  --kill-on-bad-exit=1 \
  --wait=1800 \
  --unbuffered \
  --label \
  --cpu-bind=none \
  --mpi=none \
  sh -c "$on_each" seatrial "$root" "$nonce" &
wait "$!"; code=$?
while kill -0 "$!" 2>/dev/null; do wait "$!"; code=$?; done  # a signal had ended the waiting
[ "$code" -ne 0 ] || [ ! -e "$root/launch/slurm/failed" ] || code=1
exit "$code"
