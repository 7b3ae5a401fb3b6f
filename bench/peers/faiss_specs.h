// FAISS's indexes as recipes, which the benches share: flat, PQ fast-scan, PQ and IVF-PQ. This is the distribution's
// FAISS, a generic build without wide SIMD: bench/methods/peers.py measures a fast one.
#ifndef SEINE_BENCH_METHODS_FAISS_SPECS_H_
#define SEINE_BENCH_METHODS_FAISS_SPECS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace faiss {
struct Index;
}

namespace seine::bench {

struct FaissSpec {
  std::string name;
  bool exact = false;
  double bytes_per_key = 0;       // codes, with ids where it keeps them
  double scan_bytes_per_key = 0;  // read by one search
  std::function<std::unique_ptr<faiss::Index>()> make;
};

FaissSpec Flat(int head_dim);

// `bytes` a key: two 4-bit codes each.
FaissSpec PqFastScan(int head_dim, int bytes);

// `subspaces` codes of `bits` bits each a key; head_dim is a multiple of `subspaces`.
FaissSpec Pq(int head_dim, int subspaces, int bits);

// Inverted lists of about sqrt(num_keys) centroids, a quarter of them probed, 8-bit PQ of the residuals in `bytes`.
FaissSpec IvfPq(int head_dim, int bytes, int64_t num_keys);

// Calls into FAISS on one thread. It reports by throwing, and nothing throws beyond here: INTERNAL "FAISS: ...".
absl::Status CallFaiss(const std::function<void()>& body);

}  // namespace seine::bench

#endif  // SEINE_BENCH_METHODS_FAISS_SPECS_H_
