// Appends keys to an index of its own and asks for one of them: the answer must hold it.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "index/index.h"
#include "profile/profile.h"

namespace {

constexpr int kTokens = 4096, kHeads = 2, kHeadDim = 64, kPlanted = 1234;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "embedded: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main() {
  auto backend = seine::MakeCpuBackend(/*threads=*/1);
  seine::IndexConfig config;
  config.name = "consumer";
  config.geometry = {.num_layers = 1,
                     .num_q_heads = kHeads,
                     .num_kv_heads = kHeads,
                     .head_dim = kHeadDim,
                     .dtype = seine::DType::kFloat32};
  auto index = seine::Index::Create(config, backend.get());
  if (!index.ok()) return Fail(index.status());
  auto sequence = (*index)->CreateSequence("");
  if (!sequence.ok()) return Fail(sequence.status());

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kTokens * kHeads * kHeadDim);  // [tokens, KV heads, head_dim]
  std::generate(rows.begin(), rows.end(), [&] { return normal(random); });
  auto appended = (*index)->Append(*sequence, /*layer=*/0, /*position=*/0,
                                   {rows.data(), kTokens, rows.size() * sizeof(float)}, /*values=*/{});
  if (!appended.ok()) return Fail(appended.status());

  const float* planted = rows.data() + kPlanted * kHeads * kHeadDim;  // each head's own key is its query
  auto answers = (*index)->Retrieve({{*sequence, /*layer=*/0, planted}}, config.search);
  if (!answers.ok()) return Fail(answers.status());
  const auto& answer = answers->front();
  if (!answer.status.ok()) return Fail(answer.status);
  for (const auto& positions : answer.positions) {
    if (!std::binary_search(positions.begin(), positions.end(), kPlanted)) {
      return Fail(absl::InternalError("a head's answer lacks the key that was asked for"));
    }
  }
  std::printf("embedded: %zu heads found position %d\n", answer.positions.size(), kPlanted);
  return answer.positions.size() == kHeads ? 0 : 1;
}
