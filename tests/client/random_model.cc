// Making and searching the random model.
#include "tests/client/random_model.h"
#include "client/settings.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace seine {

RandomModel::RandomModel(int64_t num_tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<float>* out, int64_t count) {
    out->resize(count);
    for (float& value : *out) value = normal(random);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    fill(&keys[layer], num_tokens * kRow);
    fill(&values[layer], num_tokens * kRow);
  }
  fill(&query, kQHeads * kHeadDim);
}

v1::IndexSpec RandomModel::Spec(const std::string& name, v1::KvStore store) {
  v1::IndexSpec spec;
  spec.set_name(name);
  *spec.mutable_geometry() = client::MakeGeometry(kLayers, kQHeads, kKvHeads, kHeadDim, client::DType::kFloat32);
  spec.mutable_zones()->set_sink(16);
  spec.mutable_zones()->set_local(64);
  spec.mutable_zones()->set_update_buffer(64);
  spec.mutable_zones()->set_dense_threshold(128);
  spec.mutable_retrieval()->set_candidate_fraction(.05);  // the codes are searched, however short the zone
  spec.mutable_retrieval()->set_scope(v1::SCOPE_PER_Q_HEAD);
  spec.set_kv_store(store);
  return spec;
}

client::ConstTensor RandomModel::Keys(int layer, int64_t first, int64_t count) const {
  return {keys[layer].data() + first * kRow, client::DType::kFloat32, {count, kKvHeads, kHeadDim}};
}

client::ConstTensor RandomModel::Values(int layer, int64_t first, int64_t count) const {
  return {values[layer].data() + first * kRow, client::DType::kFloat32, {count, kKvHeads, kHeadDim}};
}

client::ConstTensor RandomModel::Query() const { return {query.data(), client::DType::kFloat32, {kQHeads, kHeadDim}}; }

std::vector<int32_t> RandomModel::ExactTopK(int layer, int q_head, int k, int64_t begin, int64_t end) const {
  std::vector<double> score(end, 0);
  for (int64_t token = begin; token < end; ++token) {
    const float* key = keys[layer].data() + token * kRow + q_head / kGroup * kHeadDim;
    for (int d = 0; d < kHeadDim; ++d) score[token] += double{query[q_head * kHeadDim + d]} * key[d];
  }
  std::vector<int32_t> order(end - begin);
  std::iota(order.begin(), order.end(), static_cast<int32_t>(begin));
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int a, int b) { return score[a] > score[b]; });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace seine
