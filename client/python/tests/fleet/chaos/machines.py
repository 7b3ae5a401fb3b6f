"""Several raylets on this machine, each a machine to Ray, and Ray's head: what can be killed of a cluster."""

import os

import ray
from ray.cluster_utils import Cluster

RAYLET = "raylet"
USUAL = {"memory": 1 << 30, "object_store_memory": 80 << 20}
# No workers that nobody asked for, and no words about forks.
QUIET = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0", "GRPC_VERBOSITY": "ERROR"}


class Machines:
    """A head on which no server has room, and `count` machines of one server each. Whoever uses it has joined it."""

    def __init__(self, count, folder, namespace):
        # What the head knows lies on disk, so that one that is started again goes on.
        os.environ |= {**QUIET, "RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": os.path.join(folder, "head")}
        self._cluster = Cluster(initialize_head=True, head_node_args={**USUAL, "num_cpus": 0, "include_dashboard": False})
        for _ in range(count):
            self.add()
        ray.init(address=self._cluster.address, namespace=namespace, log_to_driver=False, logging_level="CRITICAL")

    def add(self):
        self._cluster.add_node(num_cpus=1, **USUAL)

    def kill_raylet(self, ray_node):
        """Kills a machine's raylet with -9. Its parent takes note of the end, as Ray's workers wait for that."""
        machine = next(node for node in self._cluster.worker_nodes if node.node_id == ray_node)
        process = machine.all_processes[RAYLET][0].process
        process.kill()
        process.wait()
        self._cluster.remove_node(machine, allow_graceful=False)

    def kill_head(self):
        """Kills the head's control process (GCS) with -9."""
        self._cluster.head_node.kill_gcs_server()

    def start_head(self):
        self._cluster.head_node.start_gcs_server()

    def shutdown(self):
        ray.shutdown()
        self._cluster.shutdown()
