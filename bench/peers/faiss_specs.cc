// See faiss_specs.h. FAISS is included by the files faiss_*.cc alone.
#include "bench/peers/faiss_specs.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexPQFastScan.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "absl/strings/str_cat.h"

namespace seine::bench {

absl::Status CallFaiss(const std::function<void()>& body) {
  omp_set_num_threads(1);  // searches are timed on one thread; and OpenMP's barriers spin for minutes on a busy machine
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("FAISS: ", e.what()));
  }
}

FaissSpec Flat(int head_dim) {
  return {"faiss_flat", true, 4.0 * head_dim, 4.0 * head_dim,
          [head_dim] { return std::make_unique<faiss::IndexFlatIP>(head_dim); }};
}

FaissSpec PqFastScan(int head_dim, int bytes) {
  return {absl::StrCat("faiss_pq_fastscan ", bytes, " B"), false, 1.0 * bytes, 1.0 * bytes,
          [head_dim, bytes]() -> std::unique_ptr<faiss::Index> {
            auto index = std::make_unique<faiss::IndexPQFastScan>(head_dim, 2 * bytes, 4, faiss::METRIC_INNER_PRODUCT);
            index->pq.cp.min_points_per_centroid = 1;  // no warnings
            return index;
          }};
}

FaissSpec Pq(int head_dim, int subspaces, int bits) {
  const double bytes = subspaces * bits / 8.0;
  return {absl::StrCat("faiss_pq ", subspaces, " x ", bits, " bits"), false, bytes, bytes,
          [head_dim, subspaces, bits]() -> std::unique_ptr<faiss::Index> {
            auto index = std::make_unique<faiss::IndexPQ>(head_dim, subspaces, bits, faiss::METRIC_INNER_PRODUCT);
            index->pq.cp.min_points_per_centroid = 1;  // no warnings
            return index;
          }};
}

FaissSpec IvfPq(int head_dim, int bytes, int64_t num_keys) {
  constexpr int kIdBytes = 8;
  const int nlist = static_cast<int>(std::clamp(std::exp2(std::floor(std::log2(std::sqrt(num_keys)))), 4.0, 4096.0));
  const int nprobe = std::max(1, nlist / 4);
  const double share = static_cast<double>(nprobe) / nlist;
  return {absl::StrCat("faiss_ivfpq ", bytes, " B, ", nprobe, "/", nlist, " lists"), false, 1.0 * bytes + kIdBytes,
          share * (bytes + kIdBytes), [head_dim, bytes, nlist, nprobe]() -> std::unique_ptr<faiss::Index> {
            auto index = std::make_unique<faiss::IndexIVFPQ>(new faiss::IndexFlatIP(head_dim), head_dim, nlist, bytes,
                                                             8, faiss::METRIC_INNER_PRODUCT);
            index->own_fields = true;  // the quantizer above
            index->nprobe = nprobe;
            index->cp.niter = index->pq.cp.niter = 10;
            index->cp.max_points_per_centroid = index->pq.cp.max_points_per_centroid = 64;  // minutes otherwise
            index->cp.min_points_per_centroid = index->pq.cp.min_points_per_centroid = 1;   // no warnings
            return index;
          }};
}

}  // namespace seine::bench
