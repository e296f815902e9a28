#!/usr/bin/env bash
# The workload of gke_jobset.yaml, written by xpk for a cluster that xpk has made:
#   CLUSTER=my-cluster IMAGE=my-image bash examples/launch/xpk.sh --mesh=data:4,model:4
set -euo pipefail
: "${CLUSTER:?name of the cluster}" "${IMAGE:?image with this package and this folder}"
printf -v arguments ' %q' "$@"
xpk workload create --cluster="$CLUSTER" --workload="${WORKLOAD:-partir-search}" \
  --docker-image="$IMAGE" --tpu-type="${TPU_TYPE:-v5litepod-16}" --num-slices=1 \
  --command="python3 examples/launch/train.py --cluster$arguments"
