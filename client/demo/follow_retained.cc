// An engine that keeps its keys and values itself and asks Seine only which of them to drop: it follows what each KV
// head retains from the answers to its appends, and frees the rows of what is evicted. The model is made up of random
// numbers. `seine-follow-retained [endpoint]` needs a running seined.
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/retained_sets.h"
#include "client/settings.h"

namespace seine::client {
namespace {

constexpr int kQHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int64_t kPrompt = 2000, kSteps = 500, kBudget = 256, kInterval = 32;

// One layer of one sequence as the engine holds it. Copied by a fork.
class OwnCache {
 public:
  // What an append, or a decode step's, is answered: rows of the tokens appended come first, then those dropped go.
  absl::Status Follow(const std::vector<float>& keys, const Retained& report) {
    const int64_t tokens = static_cast<int64_t>(keys.size()) / (kKvHeads * kHeadDim);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < kKvHeads; ++h) {
        const float* row = keys.data() + (t * kKvHeads + h) * kHeadDim;
        rows_[h][static_cast<int32_t>(length_ + t)].assign(row, row + kHeadDim);
      }
    }
    length_ += tokens;
    if (!sets_.Update(report)) return absl::DataLossError("an answer was missed");  // an engine asks for kKept here
    for (size_t h = 0; h < sets_.dropped().size(); ++h) {
      for (const int32_t position : sets_.dropped()[h]) freed_ += static_cast<int64_t>(rows_[h].erase(position));
    }
    return absl::OkStatus();
  }
  void Truncate(int64_t position) {
    sets_.Truncate(position);
    for (auto& head : rows_) head.erase(head.lower_bound(static_cast<int32_t>(position)), head.end());
    length_ = position;
  }
  RetainedReport wanted() const { return sets_.wanted(); }
  int64_t length() const { return length_; }
  int64_t freed() const { return freed_; }
  bool Equals(const std::vector<std::vector<int32_t>>& kept) const {
    for (int h = 0; h < kKvHeads; ++h) {
      if (rows_[h].size() != kept[h].size()) return false;
      for (const int32_t position : kept[h]) {
        if (!rows_[h].contains(position)) return false;
      }
    }
    return sets_.heads() == kept;
  }

 private:
  RetainedSets sets_{kKvHeads};
  std::map<int32_t, std::vector<float>> rows_[kKvHeads];  // by position
  int64_t length_ = 0, freed_ = 0;
};

std::vector<float> KeysFromTheModel(int64_t tokens) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(tokens * kKvHeads * kHeadDim);
  for (float& x : keys) x = normal(random);
  return keys;
}

AppendItem ItemOf(const Sequence& sequence, const OwnCache& cache, const std::vector<float>& keys) {
  const auto tokens = static_cast<int64_t>(keys.size()) / (kKvHeads * kHeadDim);
  AppendItem item{
      sequence, /*layer=*/0, cache.length(), {keys.data(), DType::kFloat32, {tokens, kKvHeads, kHeadDim}}, {}};
  item.report = cache.wanted();
  return item;
}

// One token: appended, and answered with what is to be dropped.
absl::Status Step(DecodeStream* stream, const Sequence& sequence, OwnCache* cache) {
  const std::vector<float> keys = KeysFromTheModel(1);
  DecodeStep step;
  step.appends = {ItemOf(sequence, *cache, keys)};
  DecodeAnswer answer;
  absl::Status status = stream->Write(step);
  if (status.ok()) status = stream->Read(&answer);
  if (status.ok()) status = answer.status;
  if (status.ok()) status = answer.append_status[0];
  return status.ok() ? cache->Follow(keys, answer.retained[0]) : status;
}

absl::Status Run(const std::string& endpoint) {
  auto client = Client::Connect(endpoint);
  if (!client.ok()) return client.status();
  v1::IndexSpec spec;
  spec.set_name("follow-retained");
  *spec.mutable_geometry() = MakeGeometry(/*num_layers=*/1, kQHeads, kKvHeads, kHeadDim, DType::kFloat32);
  spec.set_kv_store(v1::KV_STORE_KEYS);  // scorers read them
  v1::EvictionSettings& eviction = *spec.mutable_eviction();
  eviction.mutable_scorer()->set_name("keydiff");
  eviction.mutable_budget()->set_tokens(kBudget);
  eviction.mutable_keep()->set_sinks(4);
  eviction.set_interval(kInterval);
  if (auto index = (*client)->CreateIndex(spec); !index.ok()) return index.status();
  std::vector<Sequence> sequences = {*(*client)->CreateSequence(spec.name(), "")};
  std::vector<OwnCache> caches(1);

  const std::vector<float> prompt = KeysFromTheModel(kPrompt);
  auto sent = (*client)->AppendStream({ItemOf(sequences[0], caches[0], prompt)});
  if (!sent.ok()) return sent.status();
  if (auto s = caches[0].Follow(prompt, sent->retained[0].retained); !s.ok()) return s;

  sequences.push_back(*(*client)->ForkSequence(sequences[0], "", std::nullopt));  // another beam, rolled back a little
  caches.push_back(caches[0]);
  if (auto info = (*client)->TruncateSequence(sequences[1], kPrompt - 10); !info.ok()) return info.status();
  caches[1].Truncate(kPrompt - 10);

  auto stream = (*client)->OpenDecodeStream(Transport::kAuto);
  if (!stream.ok()) return stream.status();
  for (int64_t step = 0; step < kSteps; ++step) {
    if (auto s = Step(stream->get(), sequences[step % 2], &caches[step % 2]); !s.ok()) return s;
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    auto now = (*client)->GetRetained(sequences[i], /*layer=*/0);
    if (!now.ok()) return now.status();
    if (!caches[i].Equals(now->kept)) return absl::InternalError("the engine's rows are not what the index retains");
    std::printf("sequence %zu: %lld tokens, head 0 retains %zu; %lld rows freed; the same as the index\n", i,
                static_cast<long long>(caches[i].length()), now->kept[0].size(),
                static_cast<long long>(caches[i].freed()));
  }
  return (*client)->DeleteIndex(spec.name());
}

}  // namespace
}  // namespace seine::client

int main(int argc, char** argv) {
  const absl::Status status = seine::client::Run(argc > 1 ? argv[1] : seine::client::DefaultEndpoint());
  if (!status.ok()) std::fprintf(stderr, "seine-follow-retained: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
