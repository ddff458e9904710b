#!/usr/bin/env bash
# A command with a Ray cluster over all nodes of a Slurm job:
#
#     sbatch --nodes 4 slurm.sh shardopt run plan --backend ray --steps 1000 \
#         --checkpoint-dir checkpoints --resume
#
# All nodes need the same Python environment and folders. The command runs on the first node, and is
# told to end two minutes before the job is.
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@120
set -euo pipefail

port=${RAY_PORT:-6379}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]} others=$((${#nodes[@]} - 1))
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | cut -d' ' -f1)

# Newer versions of Ray let only those in who have the token; tasks inherit it.
if token=$(ray get-auth-token --generate 2> /dev/null); then
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$token
fi

cleanup() { kill "${started[@]}" 2> /dev/null || true; }
started=()
trap cleanup EXIT
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false \
    --disable-usage-stats --block &
started+=($!)
until (exec 3<> "/dev/tcp/$address/$port") 2> /dev/null; do
    kill -0 "${started[0]}" || { echo "slurm.sh: Ray has not started on $head" >&2; exit 1; }
    sleep 1
done
if ((others > 0)); then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
        ray start --address="$address:$port" --disable-usage-stats --block &
    started+=($!)
fi

# A plan is placed on the nodes that are there when its run begins.
python - "$address:$port" "${#nodes[@]}" << 'END_OF_PYTHON'
import sys, time
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
for _ in range(300):
    alive = sum(node["Alive"] for node in ray.nodes())
    if alive >= int(sys.argv[2]):
        break
    time.sleep(1)
else:
    sys.exit(f"slurm.sh: {alive} of {sys.argv[2]} nodes of Ray after 5 minutes")
END_OF_PYTHON

export RAY_ADDRESS=$address:$port
"$@" &
command=$!
trap 'kill -TERM "$command"' TERM
while :; do
    code=0
    wait "$command" || code=$?
    # A signal ends the waiting, too, and the command goes on to save its state.
    kill -0 "$command" 2> /dev/null || exit "$code"
done
