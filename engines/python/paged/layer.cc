#include "engines/python/paged/layer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engines/python/values/errors.h"
#include "index/prompt/prompt_batch.h"

namespace seine::python {
namespace {

constexpr int64_t kSlotsAtOnce = 64;  // that a thread writes

}  // namespace

PagedLayer::PagedLayer(std::shared_ptr<PagedAttention> attention, int number, nb::handle cache)
    : attention_(std::move(attention)),
      gate_(attention_->settings().gate, number),
      cache_(TensorOf(cache, "cache", 4)),
      since_refit_(number % kStepsOfRefit) {
  RaiseIfWrong(attention_->team().Check());
  const Geometry& g = attention_->geometry();
  const int64_t shape[] = {attention_->num_blocks(), attention_->settings().block_size, g.num_kv_heads,
                           int64_t{2} * g.head_dim};
  int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    if (static_cast<int64_t>(cache_.shape(i)) != shape[i] || cache_.stride(i) != stride) {
      ThrowValueError(absl::StrCat("cache: must be dense [", shape[0], ", ", shape[1], ", ", shape[2], ", ", shape[3],
                                   "]: blocks, tokens, KV heads, a key and its value"));
    }
    stride *= shape[i];
  }
  const DType dtype = FloatsOf(cache_, "cache");
  rows_.key_type = rows_.value_type = dtype;
  const size_t row = BytesOf(dtype, g.head_dim);
  rows_.key_head = rows_.value_head = 2 * row;
  rows_.key_cell = rows_.value_cell = g.num_kv_heads * 2 * row;
  base_ = static_cast<uint8_t*>(cache_.data());
  rows_.keys = base_, rows_.values = base_ + row;
  auto cells = CellLayer::Create(attention_->context(), number);
  RaiseIfWrong(cells.status());
  cells_ = *std::move(cells);
}

void PagedLayer::Write(nb::handle keys, nb::handle values, nb::handle slots) {
  RaiseIfWrong(attention_->team().Check());
  const Geometry& g = attention_->geometry();
  const std::vector<int64_t> to = IntegersOf(slots, "slots");
  const HostTensor k = TensorOf(keys, "keys", 3), v = TensorOf(values, "values", 3);
  for (const auto& [tensor, name] : {std::pair(&k, "keys"), std::pair(&v, "values")}) {
    if (FloatsOf(*tensor, name) != rows_.key_type) ThrowValueError(absl::StrCat(name, ": must have the cache's dtype"));
    if (tensor->shape(0) < to.size() || static_cast<int>(tensor->shape(1)) != g.num_kv_heads ||
        static_cast<int>(tensor->shape(2)) != g.head_dim || tensor->stride(2) != 1) {
      ThrowValueError(absl::StrCat(name, ": must be [", to.size(), " or more, ", g.num_kv_heads, ", ", g.head_dim,
                                   "], a head's elements in a row"));
    }
  }
  const int64_t capacity = attention_->num_slots();
  for (const int64_t slot : to) {  // one below 0 belongs to nobody
    if (slot >= capacity) ThrowValueError(absl::StrCat("slots: ", slot, " is not below ", capacity));
  }
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  const size_t row = BytesOf(rows_.key_type, g.head_dim), element = SizeOf(rows_.key_type);
  const auto copy = [&](const HostTensor& from, int64_t i, uint8_t* out) {
    const auto* data = static_cast<const uint8_t*>(from.data()) + i * from.stride(0) * static_cast<int64_t>(element);
    for (int h = 0; h < g.num_kv_heads; ++h) {
      std::memcpy(out + h * rows_.key_head, data + h * from.stride(1) * static_cast<int64_t>(element), row);
    }
  };
  const auto count = static_cast<int64_t>(to.size());
  attention_->team().Run(static_cast<int>((count + kSlotsAtOnce - 1) / kSlotsAtOnce), [&](int piece) {
    for (int64_t i = piece * kSlotsAtOnce; i < std::min(count, (piece + 1) * kSlotsAtOnce); ++i) {
      if (to[i] < 0) continue;
      uint8_t* const cell = base_ + to[i] * rows_.key_cell;
      copy(k, i, cell), copy(v, i, cell + row);
    }
  });
  for (int64_t i = 0; i < count;) {  // run by run of neighbouring slots
    int64_t end = i + 1;
    while (end < count && to[end - 1] >= 0 && to[end] == to[end - 1] + 1) ++end;
    if (to[i] >= 0) counts_.changed_windows += cells_->Changed(to[i], to[end - 1] + 1);
    i = end;
  }
}

void PagedLayer::Attend(const PagedStep& step, nb::handle queries, nb::handle output) {
  RaiseIfWrong(attention_->team().Check());
  if (!step.IsOf(attention_.get())) ThrowValueError("step: is of another PagedAttention than this layer");
  const HostTensor q = TensorOf(queries, "queries", 3), out = TensorOf(output, "output", 3);
  const Geometry& g = attention_->geometry();
  for (const auto& [tensor, name] : {std::pair(&q, "queries"), std::pair(&out, "output")}) {
    if (tensor->dtype() != nb::dtype<float>() || static_cast<int64_t>(tensor->shape(0)) < step.num_tokens() ||
        static_cast<int>(tensor->shape(1)) != g.num_q_heads || static_cast<int>(tensor->shape(2)) != g.head_dim ||
        tensor->stride(2) != 1 || tensor->stride(1) != g.head_dim) {
      ThrowValueError(absl::StrCat(name, ": must be float32 [", step.num_tokens(), " or more, ", g.num_q_heads, ", ",
                                   g.head_dim, "], a token's elements in a row"));
    }
  }
  const nb::gil_scoped_release release;
  const std::lock_guard lock(mutex_);
  queries_ = static_cast<const float*>(q.data()), output_ = static_cast<float*>(out.data());
  query_stride_ = q.stride(0), output_stride_ = out.stride(0);
  longest_prompt_ = std::max(longest_prompt_, step.longest_prompt());
  const int64_t begin = NowMicros();
  for (const PromptRows& prompt : step.prompts()) AttendPrompt(prompt);
  const int64_t prompts_done = NowMicros();
  if (!step.prompts().empty()) counts_.prompt_us += prompts_done - begin;
  if (step.decodes().empty()) return;
  Decode(step);
  counts_.decode_us += NowMicros() - prompts_done;
}

nb::dict PagedLayer::Counts() {
  PagedCounts counts;
  int64_t bytes = 0;
  LayerGate::Reading reading;
  {
    const nb::gil_scoped_release release;  // a long prompt has the lock, and other threads of Python go on
    const std::lock_guard lock(mutex_);
    counts = counts_, bytes = cells_->bytes(), reading = gate_.Read();
  }
  nb::dict out, declined;
  out["coded"] = counts.coded, out["exact"] = counts.exact, out["gated"] = counts.gated;
  out["cut"] = counts.cut;
  out["prompt_tokens"] = counts.prompt_tokens;
  out["prompt_runs_seen"] = counts.prompt_runs_seen, out["prompt_runs_taken"] = counts.prompt_runs_taken;
  out["encoded_keys"] = counts.encoded_keys;
  out["changed_windows"] = counts.changed_windows, out["found_windows"] = counts.found_windows;
  out["decode_us"] = counts.decode_us, out["prompt_us"] = counts.prompt_us, out["encode_us"] = counts.encode_us;
  for (const auto& [why, count] : counts.declined) declined[why.c_str()] = count;
  out["declined"] = declined;
  out["bytes"] = bytes;
  out["gate_checks"] = reading.checks, out["gate_lost"] = reading.lost;
  out["gate_exact"] = reading.exact, out["gate_lost_then"] = reading.lost_then;
  return out;
}

int64_t PagedLayer::NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void PagedLayer::AttendPrompt(const PromptRows& prompt) {
  const Geometry& g = attention_->geometry();
  const int block_size = attention_->settings().block_size;
  std::vector<std::vector<const uint8_t*>> chunks(2 * g.num_kv_heads);  // of keys, and of values
  for (int h = 0; h < 2 * g.num_kv_heads; ++h) {
    const uint8_t* const rows = h < g.num_kv_heads ? rows_.keys : rows_.values;
    for (const int64_t block : prompt.blocks) {
      chunks[h].push_back(rows + block * block_size * rows_.key_cell + h % g.num_kv_heads * rows_.key_head);
    }
  }
  const auto rows_of = [&](int64_t, int head) {
    const auto by_block = [&](int at) {
      return ChunkedRows{chunks[at].data(), block_size, g.head_dim, rows_.key_type, rows_.key_cell};
    };
    return PromptBatch::Rows{by_block(head), by_block(g.num_kv_heads + head)};
  };
  PromptBatch batch{.rows_of = rows_of};
  batch.mask = prompt.mask.get(), batch.num_kv_heads = g.num_kv_heads, batch.head_dim = g.head_dim;
  const CellConfig& cells = attention_->context()->config();
  batch.scale = cells.search.softmax_scale, batch.softcap = cells.softcap;
  batch.queries = queries_ + prompt.token * query_stride_, batch.query_strides = {0, query_stride_, g.head_dim};
  batch.outputs = output_ + prompt.token * output_stride_, batch.output_strides = {0, output_stride_, g.head_dim};
  PromptParams params = attention_->settings().prompt;
  if (prompt.mask->tokens() < kPromptTokens) params.mass = 1;  // guessed tokens, or a prompt's rest
  const PromptCounts counts = AttendPromptBatch(
      batch, params, [this](int count, const std::function<void(int)>& task) { attention_->team().Run(count, task); });
  counts_.prompt_tokens += prompt.mask->tokens();
  counts_.prompt_runs_seen += counts.seen, counts_.prompt_runs_taken += counts.taken;
}

}  // namespace seine::python
