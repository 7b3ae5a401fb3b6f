// Peers that live in Python (bench/methods/peers.py: numpy and PyPI's FAISS), run on the same keys and queries in the
// same run.
#ifndef SEINE_BENCH_METHODS_PEERS_H_
#define SEINE_BENCH_METHODS_PEERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/inputs/dataset.h"
#include "bench/methods/recall_row.h"

namespace seine::bench {

struct PeerOptions {
  std::string command;  // e.g. "python3 bench/methods/peers.py": run by the shell, with arguments added
  int top_k = 100;
  std::vector<double> betas;
  bool cold = true;
};

struct PeerResult {
  std::string versions;  // of the libraries, in words
  std::vector<Row> rows;
};

// Writes zone keys [heads, num_keys, head_dim] and queries [heads, queries, head_dim] as .npy files into a temporary
// folder, runs the command on them and reads the JSON that it prints. Errors name --peers.
absl::StatusOr<PeerResult> RunPeers(const Dataset& dataset, const PeerOptions& options);

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_PEERS_H_
