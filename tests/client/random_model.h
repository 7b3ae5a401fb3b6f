// Random keys, values and queries of a small model, and exact attention over them to compare answers with.
#ifndef SEINE_TESTS_CLIENT_RANDOM_MODEL_H_
#define SEINE_TESTS_CLIENT_RANDOM_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/types.h"
#include "seine/v1/index_service.pb.h"

namespace seine {

struct RandomModel {
  static constexpr int kLayers = 2, kQHeads = 4, kKvHeads = 2, kHeadDim = 64, kGroup = kQHeads / kKvHeads;
  static constexpr int kRow = kKvHeads * kHeadDim;  // elements of a token

  explicit RandomModel(int64_t num_tokens, uint64_t seed = 7);

  // An index for it: fp32, zones small enough that 600 tokens have a zone of 512, one set for each query head.
  static v1::IndexSpec Spec(const std::string& name, v1::KvStore store);

  client::ConstTensor Keys(int layer, int64_t first, int64_t count) const;
  client::ConstTensor Values(int layer, int64_t first, int64_t count) const;
  client::ConstTensor Query() const;  // [kQHeads, kHeadDim]

  // The k positions of [begin, end) with the largest <query, key> for a query head, ascending.
  std::vector<int32_t> ExactTopK(int layer, int q_head, int k, int64_t begin, int64_t end) const;

  std::vector<float> keys[kLayers], values[kLayers];  // [num_tokens, kKvHeads, kHeadDim]
  std::vector<float> query;
};

}  // namespace seine

#endif  // SEINE_TESTS_CLIENT_RANDOM_MODEL_H_
