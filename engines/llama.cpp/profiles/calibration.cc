// Sums moments batch by batch and writes them in the layout of Hugging Face's models.
#include "engines/llama.cpp/profiles/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engines/llama.cpp/ggml/origin.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"
#include "kernels/host.h"
#include "profile/layout.h"
#include "profile/moments.h"

namespace seine::llama {

namespace {

constexpr int64_t kWindow = 64;         // keys that share a centre
constexpr int32_t kSink = 16;           // first positions of a text, left out: sinks are like no other keys
constexpr int64_t kFewestTokens = 512;  // that make a profile
constexpr char kVariable[] = "SEINE_CALIBRATE: ";

// The file's name without its endings: the model's, as whoever runs it calls it.
std::string ModelName(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename().string();
  absl::string_view name = file;
  for (const absl::string_view ending : {".safetensors", ".profile"}) {
    if (absl::EndsWith(name, ending)) name.remove_suffix(ending.size());
  }
  return std::string(name);
}

// The profile as one of Hugging Face's layout, which GGUFs of many models change.
Profile InHalves(Profile profile) {
  const auto rope = ParseRope(profile.rope_json, profile.head_dim, profile.rope_style, /*length=*/1);
  Rope halves = rope.ok() ? *rope : Rope();
  halves.style = Rope::Style::kHalfSplit;
  return *InLayout(std::make_shared<const Profile>(std::move(profile)), halves);
}

// Calls use(first, count, position of the first) for runs of tokens behind the sink whose positions follow each other.
template <typename Use>
void ForEachRun(const std::vector<int32_t>& positions, Use use) {
  for (size_t first = 0, next = 0; first < positions.size(); first = next) {
    next = first + 1;
    if (positions[first] < kSink) continue;
    while (next < positions.size() && positions[next] == positions[next - 1] + 1) ++next;
    use(first, next - first, positions[first]);
  }
}

// Takes back what llama.cpp multiplied rows by before it quantises them (RotationOf): such matrices are their own
// inverses.
void TurnBack(float* rows, size_t floats, int rotation) {
  if (rotation == 0) return;
  const std::vector<float> no_signs(rotation, 1 / std::sqrt(static_cast<float>(rotation)));
  host::Rotate(rows, static_cast<int>(floats / rotation), rotation, no_signs.data());
}

}  // namespace

Calibration* Calibration::Get() {
  static Calibration* const calibration = [] {
    if (settings().calibrate.empty()) return static_cast<Calibration*>(nullptr);
    std::atexit([] { Get()->Finish(); });
    return new Calibration();
  }();
  return calibration;
}

bool Calibration::measuring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !done_;
}

void Calibration::Refused(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refused_ = why;
}

void Calibration::Leave(const void* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (context_ != context) return;
  context_ = nullptr;
  for (size_t layer = 0; layer < layers_.size(); ++layer) AddWaiting(static_cast<int>(layer), kWindow);
}

void Calibration::Stop(const std::string& why) {
  done_ = true;
  builder_.reset();
  layers_.clear();
  SayOnce(absl::StrCat(kVariable, why, "; no profile is written"));
}

int Calibration::NumberOf(const CacheFacts& facts) {
  const std::vector<int> layers = LayersOfCache(facts);
  return static_cast<int>(std::lower_bound(layers.begin(), layers.end(), facts.layer) - layers.begin());
}

bool Calibration::SameModel(const CacheFacts& facts) const {
  const int number = NumberOf(facts);
  return facts.num_q_heads == facts_.num_q_heads && facts.num_kv_heads == facts_.num_kv_heads &&
         facts.head_dim == facts_.head_dim && number < static_cast<int>(layers_.size()) &&
         facts.rope.inv_freq == layers_[number].rope.inv_freq;
}

std::optional<bool> Calibration::Slides(const CacheFacts& facts) const {
  const std::optional<CacheFacts> other = FindOther(facts);
  if (!other || other->capacity < facts.capacity) return false;
  if (other->capacity > facts.capacity) return true;
  if (sliding_ == nullptr) return std::nullopt;
  return facts.buffer == sliding_;
}

void Calibration::Compare(const CacheFacts& facts, const AttentionNode& node) {
  const std::optional<CacheFacts> other = FindOther(facts);
  std::vector<CellRun> runs;
  if (sliding_ != nullptr || !other || other->capacity != facts.capacity) return;
  if (!node.CellsSeen(node.num_tokens - 1, 0, &runs)) return;
  if (facts.layer <= std::exchange(attending_, facts.layer)) attended_.clear();  // another batch
  int64_t& cells = attended_[facts.buffer];
  cells = 0;
  for (const CellRun& run : runs) cells += run.end - run.begin;
  const auto beside = attended_.find(other->buffer);
  if (beside == attended_.end() || beside->second == cells) return;
  sliding_ = beside->second < cells ? beside->first : facts.buffer;
}

bool Calibration::Begin(const void* context, const CacheFacts& facts, bool first) {
  if (!Measures(context)) return false;
  if (Slides(facts).value_or(true) || (builder_ == nullptr && !first)) return false;
  if (builder_ == nullptr) {
    facts_ = facts;
    layers_.clear();
    for (const CacheFacts& layer : FactsOfCache(facts)) {
      layers_.emplace_back().rope = layer.rope;
      if (layer.rope.stated() || !facts.rope.stated()) continue;
      Stop(absl::StrCat("layer ", layer.layer, " has a RoPE of a kind that a profile cannot state"));
      return false;
    }
    builder_ = std::make_unique<ProfileBuilder>(static_cast<int>(layers_.size()), facts.num_q_heads, facts.num_kv_heads,
                                                facts.head_dim);
  } else if (!SameModel(facts)) {
    if (context_ == context) Stop("layers differ in their heads, or in their RoPE from batch to batch");
    return false;
  }
  context_ = context;
  return true;
}

// They are read at the first layer, since RoPE of the others still needs them there: behind the last layer's, their
// memory may be another tensor's.
bool Calibration::ReadPositions(const ggml_tensor* keys) {
  positions_.clear();
  const bool turns = std::any_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.rope.turns(); });
  if (FindRope(keys) == nullptr && !turns) {  // only the order of the tokens counts
    const int64_t first = tokens_ > 0 ? kSink + tokens_ : 0;
    for (int64_t t = 0; t < keys->ne[1]; ++t) positions_.push_back(static_cast<int32_t>(first + t));
    return true;
  }
  const absl::Span<const int32_t> positions = PositionsOf(keys);
  if (!facts_.rope.stated()) {
    Stop(absl::StrCat("layer ", facts_.layer, " has a RoPE of a kind that a profile cannot state"));
  } else if (layers_.size() < 2) {
    Stop("a model of one layer cannot be measured");
  } else if (positions.empty()) {
    Stop("the positions of the tokens cannot be read off llama.cpp's graph");
  } else {
    positions_.assign(positions.begin(), positions.end());
  }
  return !done_;
}

bool Calibration::HoldsRows(const ggml_tensor* rows) const {
  return rows->type == GGML_TYPE_F32 && rows->ne[0] == int64_t{facts_.num_kv_heads} * facts_.head_dim &&
         rows->ne[1] == static_cast<int64_t>(positions_.size()) && rows->ne[2] == 1 && rows->ne[3] == 1;
}

void Calibration::RecordRows(const void* context, const ggml_tensor* node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ggml_tensor *root = RootOf(node), *rows = node->src[0];
  const bool keys = IsKeyCache(root);
  CacheFacts facts;
  if (done_ || !FindFacts(keys ? root->data : KeysOfValues(root->data), &facts)) return;
  const int layer = NumberOf(facts);
  const bool first = keys && layer == 0 && Slides(facts) == false;
  if (first && tokens_ >= settings().calibrate_tokens && Measures(context)) return Write();
  if (!Begin(context, facts, first) || (first && !ReadPositions(rows))) return;
  if (!HoldsRows(rows)) return Stop("keys or values are written in an order that is not known");
  if (keys) {
    AddKeys(layer, rows);
  } else {
    AddValues(layer, rows);
  }
}

void Calibration::AddKeys(int layer, const ggml_tensor* rows) {
  Layer& l = layers_[layer];
  const auto width = static_cast<int64_t>(rows->ne[0]);
  ForEachRun(positions_, [&](size_t first, size_t count, int32_t position) {
    if (l.first + static_cast<int64_t>(l.keys.size()) / width != position) {  // another text, or a part of this again
      AddWaiting(layer, kWindow);
      l.first = position;
    }
    for (size_t t = first; t < first + count; ++t) {
      const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(rows->data) + t * rows->nb[1]);
      l.keys.insert(l.keys.end(), row, row + width);
    }
    TurnBack(l.keys.data() + l.keys.size() - count * width, count * width, RotationOf(rows));
    AddWaiting(layer, static_cast<int64_t>(l.keys.size()) / width / kWindow * kWindow);
  });
}

void Calibration::AddWaiting(int layer, int64_t count) {
  Layer& l = layers_[layer];
  const int64_t width = int64_t{facts_.num_kv_heads} * facts_.head_dim;
  count = std::min(count, static_cast<int64_t>(l.keys.size()) / width);
  if (count == 0) return;
  builder_->AddKeys(layer, l.keys.data(), count, l.first, l.rope);
  l.keys.erase(l.keys.begin(), l.keys.begin() + count * width);
  l.first += count;
}

void Calibration::AddValues(int layer, const ggml_tensor* rows) {
  ForEachRun(positions_, [&](size_t first, size_t count, int32_t) {
    floats_.clear();
    for (size_t t = first; t < first + count; ++t) {
      const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(rows->data) + t * rows->nb[1]);
      floats_.insert(floats_.end(), row, row + rows->ne[0]);
    }
    TurnBack(floats_.data(), floats_.size(), RotationOf(rows));
    builder_->AddValues(layer, floats_.data(), static_cast<int64_t>(count));
  });
}

void Calibration::RecordQueries(const void* context, const AttentionNode& node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CacheFacts facts;
  if (done_ || !FindFacts(RootOf(node.keys)->data, &facts)) return;
  if (Measures(context)) Compare(facts, node);
  if (!Begin(context, facts)) return;
  if (node.num_tokens * node.num_streams != static_cast<int64_t>(positions_.size())) {
    return Stop("queries come in an order that is not known");
  }
  const int layer = NumberOf(facts);
  ForEachRun(positions_, [&](size_t first, size_t count, int32_t position) {
    floats_.clear();
    for (size_t t = first; t < first + count; ++t) {
      const auto token = static_cast<int64_t>(t) % node.num_tokens, stream = static_cast<int64_t>(t) / node.num_tokens;
      for (int head = 0; head < node.num_q_heads; ++head) {
        const float* query = node.Query(head, token, stream);
        floats_.insert(floats_.end(), query, query + node.head_dim);
      }
    }
    TurnBack(floats_.data(), floats_.size(), RotationOf(node.queries));
    builder_->AddQueries(layer, floats_.data(), static_cast<int64_t>(count), position, layers_[layer].rope);
    if (layer == 0) tokens_ += static_cast<int64_t>(count);
  });
}

void Calibration::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!done_) Write();
}

void Calibration::Write() {
  if (builder_ == nullptr && attended_.size() > 1 && sliding_ == nullptr) {
    return Stop(
        "layers that slide have as many cells as those that attend all (swa_full), and no text was longer than their "
        "window: read a longer one, or turn swa_full off");
  }
  if (builder_ == nullptr) {
    return Stop(refused_.empty() ? "no attention was seen (flash attention must be on: -fa on)"
                                 : absl::StrCat("nothing was measured: ", refused_));
  }
  if (tokens_ < kFewestTokens) {
    return Stop(absl::StrCat("only ", tokens_, " tokens were seen, where ", kFewestTokens, " are the least"));
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) AddWaiting(static_cast<int>(layer), kWindow);
  absl::StatusOr<Profile> profile = builder_->Finish();
  if (!profile.ok()) return Stop(std::string(profile.status().message()));
  const std::string& path = settings().calibrate;
  profile->model = ModelName(path);
  profile->licence = "unstated";
  profile->texts = {"what llama.cpp read while it was measured"};
  const auto turning = std::find_if(layers_.begin(), layers_.end(), [](const Layer& l) { return l.rope.turns(); });
  const Rope& rope = turning == layers_.end() ? facts_.rope : turning->rope;
  LayerRopes others;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].rope.inv_freq != rope.inv_freq) others[static_cast<int>(layer)] = layers_[layer].rope;
  }
  profile->rope_json = RopeJson(rope);
  profile->layer_ropes_json = LayerRopesJson(others);
  profile->rope_style = rope.style;
  const Profile halves = InHalves(*std::move(profile));
  absl::Status status = WriteProfile(halves, ProfilePrecision::kFloat16, path);
  const bool too_large = absl::IsInvalidArgument(status);  // for fp16; what fp32 cannot hold is refused again
  if (too_large) status = WriteProfile(halves, ProfilePrecision::kFloat32, path);
  if (!status.ok()) return Stop(std::string(status.message()));
  SayOnce(absl::StrCat(kVariable, path, ": a profile of ", halves.num_layers(), " layers over ", halves.key_tokens,
                       " tokens", too_large ? ", in fp32, since fp16 cannot hold its moments" : ""));
  done_ = true;
  builder_.reset();
  layers_.clear();
}

}  // namespace seine::llama
