#!/usr/bin/env bash
# The same command on every worker of a TPU slice; jax finds the workers by itself. From a clone:
#   TPU=my-slice ZONE=us-west4-a bash examples/launch/tpu_pod.sh --mesh=data:4,model:4
set -euo pipefail
: "${TPU:?name of the TPU VM}" "${ZONE:?zone of the TPU VM}"
on_all() {
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"
}
gcloud compute tpus tpu-vm scp --recurse "$PWD" "$TPU:partir_search" --zone="$ZONE" --worker=all
on_all "cd partir_search && ${PYTHON:-python3} -m pip install -q '.[tpu,examples]'"
printf -v arguments ' %q' "$@"
on_all "cd partir_search && ${PYTHON:-python3} examples/launch/train.py --cluster$arguments"
