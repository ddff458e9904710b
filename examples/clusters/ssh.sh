#!/usr/bin/env bash
# A command with a Ray cluster over this machine and others that ssh reaches without a password:
#
#     HOSTS="node1 node2" ./ssh.sh shardopt run plan --backend ray --steps 1000
#
# HEAD_ADDRESS is the address of this machine for the others. All need the same Python environment,
# in the same folder.
set -euo pipefail

read -ra hosts <<< "${HOSTS?names of the other machines}"
port=${RAY_PORT:-6379}
address=${HEAD_ADDRESS:-$(hostname -I | cut -d' ' -f1)}
ray=$(command -v ray)

started=()
cleanup() { kill "${started[@]}" 2> /dev/null || true; }
trap cleanup EXIT

# Newer versions of Ray let only those in who have the token. It goes through a pipe, as others can
# see arguments.
mode=
if token=$(ray get-auth-token --generate 2> /dev/null); then
    mode=RAY_AUTH_MODE=token
    export "${mode?}"
    for host in "${hosts[@]}"; do
        # shellcheck disable=SC2016  # of the other machine
        ssh -o BatchMode=yes "$host" 'umask 077; mkdir -p ~/.ray; cat > ~/.ray/auth_token' <<< "$token"
    done
fi
ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false \
    --disable-usage-stats --block &
started+=($!)
until (exec 3<> "/dev/tcp/$address/$port") 2> /dev/null; do
    kill -0 "${started[0]}" || { echo "ssh.sh: Ray has not started here" >&2; exit 1; }
    sleep 1
done
for host in "${hosts[@]}"; do
    # With a terminal, the other end ends when this one does.
    ssh -tt -o BatchMode=yes "$host" \
        "exec env $mode '$ray' start --address='$address:$port' --disable-usage-stats --block" < /dev/null &
    started+=($!)
done

# A plan is placed on the nodes that are there when its run begins.
python - "$address:$port" $((${#hosts[@]} + 1)) << 'END_OF_PYTHON'
import sys, time
import ray

ray.init(address=sys.argv[1], log_to_driver=False)
for _ in range(300):
    alive = sum(node["Alive"] for node in ray.nodes())
    if alive >= int(sys.argv[2]):
        break
    time.sleep(1)
else:
    sys.exit(f"ssh.sh: {alive} of {sys.argv[2]} nodes of Ray after 5 minutes")
END_OF_PYTHON

export RAY_ADDRESS=$address:$port
"$@"
