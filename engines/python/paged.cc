// A layer's cache lies in the engine's memory, [blocks, block_size, KV heads, 2 head_dim]: a key, and behind it its
// value. Codes belong to its slots (index/cells/cell_layer.h), whoever's text lies there, so that texts that share
// blocks share codes. A step says which slots each text sees, in the text's own order: sink and local are its first and
// last tokens wherever they lie.
#include "engines/python/paged.h"

#include <dlfcn.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>  // in every unit alike: without it a str is no std::string
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/fork.h"
#include "engines/python/errors.h"
#include "index/cells/cell_layer.h"
#include "index/config/code_bits.h"
#include "index/layer_gate.h"
#include "index/prompt/prompt_batch.h"
#include "kernels/backend.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::python {
namespace {

namespace nb = nanobind;

using Tensor = nb::ndarray<nb::device::cpu>;  // NOLINT(misc-include-cleaner)

constexpr int64_t kRunWindows = 16;   // windows that a thread encodes at a time
constexpr int64_t kSlotsAtOnce = 64;  // that a thread writes
constexpr int kStepsOfRefit = 16;     // from a head of a layer whose codes are made anew to the next
constexpr int kPromptTokens = 64;     // of one text in a step: a prompt's, whose codes are made for its whole length

[[noreturn]] void ThrowPagedError(const std::string& text) { throw nb::value_error(text.c_str()); }

int64_t NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Tensor TensorOf(nb::handle object, absl::string_view name, size_t dims) {
  Tensor tensor;
  if (!nb::try_cast(object, tensor, /*convert=*/false)) {
    ThrowPagedError(absl::StrCat(name, ": must be an array or tensor in the host's memory"));
  }
  if (tensor.ndim() != dims) ThrowPagedError(absl::StrCat(name, ": must have ", dims, " dimensions"));
  return tensor;
}

template <typename T>
std::vector<T> IntegersOf(nb::handle object, absl::string_view name) {
  const Tensor tensor = TensorOf(object, name, 1);
  const auto count = static_cast<int64_t>(tensor.shape(0));
  std::vector<T> out(count);
  const auto copy = [&](const auto* from) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(from[i * tensor.stride(0)]);
  };
  if (tensor.dtype() == nb::dtype<int32_t>()) {
    copy(static_cast<const int32_t*>(tensor.data()));
  } else if (tensor.dtype() == nb::dtype<int64_t>()) {
    copy(static_cast<const int64_t*>(tensor.data()));
  } else {
    ThrowPagedError(absl::StrCat(name, ": must be int32 or int64"));
  }
  return out;
}

DType FloatsOf(const Tensor& tensor, absl::string_view name) {
  const nb::dlpack::dtype type = tensor.dtype();
  if (type == nb::dtype<float>()) return DType::kFloat32;
  if (type.lanes == 1 && type.bits == 16) {
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) return DType::kFloat16;
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::kBFloat16;
  }
  ThrowPagedError(absl::StrCat(name, ": must be float32, float16 or bfloat16"));
}

// The threads that the engine's own operations run on, where it has loaded an OpenMP for the whole process as torch
// does: no thread is idle or two on a core while the engine's and ours take turns. Otherwise threads of our own.
class Team {
 public:
  explicit Team(int threads) {
    if (threads < 0) ThrowPagedError(absl::StrCat("threads: must be 0 or more, not ", threads));
    if (threads == 0) {
      parallel_ = reinterpret_cast<Parallel*>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
      count_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    }
    if (!openmp()) backend_ = MakeCpuBackend(threads);
  }
  ~Team() {
    if (!made_.here()) client::KeepForEver(std::move(backend_));
  }
  Team(const Team&) = delete;

  bool openmp() const { return parallel_ != nullptr && count_ != nullptr; }
  int threads() const { return openmp() ? count_() : backend_->num_threads(); }
  absl::Status Check() const { return made_.Check(); }

  void Run(int count, const std::function<void(int)>& task) {
    if (!openmp()) return backend_->Run(count, task);
    if (count == 1) return task(0);
    Work work{&task, count, {0}};
    parallel_(&Team::Take, &work, 0, 0);
  }

 private:
  using Parallel = void(void (*)(void*), void*, unsigned, unsigned);
  struct Work {
    const std::function<void(int)>* task;
    int count;
    std::atomic<int> next;
  };
  static void Take(void* data) {
    auto* work = static_cast<Work*>(data);
    for (int i; (i = work->next.fetch_add(1, std::memory_order_relaxed)) < work->count;) (*work->task)(i);
  }

  const client::MadeHere made_;
  Parallel* parallel_ = nullptr;
  int (*count_)() = nullptr;
  std::shared_ptr<Backend> backend_;
};

// Ascending, those that touch made one.
template <typename Run>
void Merge(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    if ((*runs)[i].begin == (*runs)[kept].end) {
      (*runs)[kept].end = (*runs)[i].end;
    } else {
      (*runs)[++kept] = (*runs)[i];
    }
  }
  if (!runs->empty()) runs->resize(kept + 1);
}

struct PagedSettings {
  int block_size = 0;
  int64_t min_tokens = 0;  // of texts that are attended by codes
  CellConfig cells;
  PromptParams prompt;
  double gate = 0;
};

// A text's newest token, in a step.
struct DecodeRow {
  int64_t token = 0;  // of the step
  int64_t length = 0;
  bool coded = false;
  SeenCells seen;
};

struct PromptRows {
  int64_t token = 0, length = 0;  // the first of the step's; of the text, with them
  std::vector<int64_t> blocks;
  std::unique_ptr<PromptMask> mask;
};

class PagedAttention;

// What each text of a step sees, for all layers of one PagedAttention.
class PagedStep {
 public:
  PagedStep(const PagedAttention* attention, const PagedSettings& settings, const Geometry& geometry, Team* team,
            int64_t num_blocks, const std::vector<int64_t>& starts, const std::vector<int64_t>& lengths,
            const Tensor& blocks)
      : attention_(attention) {
    if (starts.size() != lengths.size() + 1 || blocks.shape(0) < lengths.size()) {
      ThrowPagedError("query_start: must have one number more than seq_lens, and block_table a row for each");
    }
    if (blocks.dtype() != nb::dtype<int32_t>()) ThrowPagedError("block_table: must be int32");
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t length = lengths[i], rows = starts[i + 1] - starts[i];
      if (rows < 0 || starts[i] < 0 || rows > length) {
        ThrowPagedError(absl::StrCat("seq_lens: text ", i, " has ", length, " tokens and ", rows, " queries"));
      }
      if (rows == 0) continue;
      const std::vector<int64_t> of_text = BlocksOf(settings, blocks, i, length, num_blocks);
      longest_ = std::max(longest_, length);
      if (rows >= kPromptTokens) longest_prompt_ = std::max(longest_prompt_, length);
      if (rows == 1) {
        decodes_.push_back({starts[i], length, length >= settings.min_tokens, {}});
        Divide(settings, of_text, &decodes_.back());
      } else {
        prompts_.push_back({starts[i], length, of_text,
                            std::make_unique<PromptMask>(
                                rows, length, geometry.group(),
                                [team](int count, const std::function<void(int)>& task) { team->Run(count, task); })});
      }
    }
    num_tokens_ = starts.empty() ? 0 : starts.back();
  }

  PagedStep(const PagedStep&) = delete;

  bool IsOf(const PagedAttention* attention) const { return attention_ == attention; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t longest() const { return longest_; }
  int64_t longest_prompt() const { return longest_prompt_; }
  const std::vector<DecodeRow>& decodes() const { return decodes_; }
  const std::vector<PromptRows>& prompts() const { return prompts_; }

 private:
  static std::vector<int64_t> BlocksOf(const PagedSettings& settings, const Tensor& table, size_t text, int64_t length,
                                       int64_t num_blocks) {
    const int64_t count = (length + settings.block_size - 1) / settings.block_size;
    if (count > static_cast<int64_t>(table.shape(1))) {
      ThrowPagedError(
          absl::StrCat("block_table: text ", text, " of ", length, " tokens has ", table.shape(1), " blocks"));
    }
    const auto* of_text = static_cast<const int32_t*>(table.data()) + static_cast<int64_t>(text) * table.stride(0);
    std::vector<int64_t> blocks(count);
    for (int64_t b = 0; b < count; ++b) {
      blocks[b] = of_text[b * table.stride(1)];
      if (blocks[b] < 0 || blocks[b] >= num_blocks) {
        ThrowPagedError(absl::StrCat("block_table: text ", text, " has block ", blocks[b], " of ", num_blocks));
      }
    }
    return blocks;
  }

  // Windows are of slots, and a block is a whole number of them. Those between the text's first `sink` tokens and its
  // last `local` ones are the zone.
  static void Divide(const PagedSettings& settings, const std::vector<int64_t>& blocks, DecodeRow* row) {
    const int64_t size = settings.block_size, length = row->length;
    const int64_t sink = (settings.cells.sink + kWindowTokens - 1) / kWindowTokens * kWindowTokens;
    const int64_t end = std::max<int64_t>(length - settings.cells.local, 0) / kWindowTokens * kWindowTokens;
    const bool zone = row->coded && end > sink;
    SeenCells* seen = &row->seen;
    for (int64_t b = 0; b < static_cast<int64_t>(blocks.size()); ++b) {
      const int64_t first = b * size, last = std::min(first + size, length), slot = blocks[b] * size;
      seen->all.push_back({slot, slot + last - first});
      if (!zone) continue;
      const auto within = [&](int64_t token) { return slot + std::clamp(token, first, last) - first; };
      const int64_t from = within(sink), to = within(end);
      if (from > slot) seen->dense.push_back({slot, from});
      if (to > from) {
        seen->zone.push_back({from / kWindowTokens, to / kWindowTokens});
        seen->num_windows += (to - from) / kWindowTokens;
      }
      if (slot + last - first > std::max(from, to)) seen->dense.push_back({std::max(from, to), slot + last - first});
    }
    Merge(&seen->all);
    if (!zone) return;
    Merge(&seen->dense);
    Merge(&seen->zone);
  }

  const PagedAttention* const attention_;  // that made it
  int64_t num_tokens_ = 0, longest_ = 0, longest_prompt_ = 0;
  std::vector<DecodeRow> decodes_;
  std::vector<PromptRows> prompts_;
};

struct PagedCounts {
  int64_t coded = 0, exact = 0, gated = 0;  // answers of a text's newest token
  int64_t prompt_tokens = 0, prompt_runs_seen = 0, prompt_runs_taken = 0;
  int64_t encoded_keys = 0;
  int64_t changed_windows = 0, found_windows = 0;  // by writes; by hashes, for nobody had told of a write
  int64_t decode_us = 0, prompt_us = 0, encode_us = 0;
  std::map<std::string, int64_t> declined;  // why codes did not answer -> answers
};

class PagedLayer;

class PagedAttention {
 public:
  PagedAttention(PagedSettings settings, int64_t num_blocks, std::unique_ptr<CellContext> context, int threads)
      : settings_(std::move(settings)), num_blocks_(num_blocks), context_(std::move(context)), team_(threads) {}

  std::unique_ptr<PagedStep> Step(nb::handle query_start, nb::handle seq_lens, nb::handle block_table) {
    RaiseIfWrong(team_.Check());
    const std::vector<int64_t> starts = IntegersOf<int64_t>(query_start, "query_start");
    const std::vector<int64_t> lengths = IntegersOf<int64_t>(seq_lens, "seq_lens");
    const Tensor blocks = TensorOf(block_table, "block_table", 2);
    return std::make_unique<PagedStep>(this, settings_, geometry(), &team_, num_blocks_, starts, lengths, blocks);
  }

  const PagedSettings& settings() const { return settings_; }
  const Geometry& geometry() const { return context_->config().geometry; }
  int64_t num_blocks() const { return num_blocks_; }
  CellContext* context() { return context_.get(); }
  Team& team() { return team_; }

 private:
  const PagedSettings settings_;
  const int64_t num_blocks_;
  const std::unique_ptr<CellContext> context_;
  Team team_;
};

// One layer's codes. Calls come one at a time.
class PagedLayer {
 public:
  PagedLayer(std::shared_ptr<PagedAttention> attention, int number, nb::handle cache)
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
        ThrowPagedError(absl::StrCat("cache: must be dense [", shape[0], ", ", shape[1], ", ", shape[2], ", ", shape[3],
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

  void Write(nb::handle keys, nb::handle values, nb::handle slots) {
    RaiseIfWrong(attention_->team().Check());
    const Geometry& g = attention_->geometry();
    const std::vector<int64_t> to = IntegersOf<int64_t>(slots, "slots");
    const Tensor k = TensorOf(keys, "keys", 3), v = TensorOf(values, "values", 3);
    for (const auto& [tensor, name] : {std::pair(&k, "keys"), std::pair(&v, "values")}) {
      if (FloatsOf(*tensor, name) != rows_.key_type)
        ThrowPagedError(absl::StrCat(name, ": must have the cache's dtype"));
      if (tensor->shape(0) < to.size() || static_cast<int>(tensor->shape(1)) != g.num_kv_heads ||
          static_cast<int>(tensor->shape(2)) != g.head_dim || tensor->stride(2) != 1) {
        ThrowPagedError(absl::StrCat(name, ": must be [", to.size(), " or more, ", g.num_kv_heads, ", ", g.head_dim,
                                     "], a head's elements in a row"));
      }
    }
    const int64_t capacity = attention_->num_blocks() * attention_->settings().block_size;
    for (const int64_t slot : to) {  // one below 0 belongs to nobody
      if (slot >= capacity) ThrowPagedError(absl::StrCat("slots: ", slot, " is not below ", capacity));
    }
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const size_t row = BytesOf(rows_.key_type, g.head_dim), element = SizeOf(rows_.key_type);
    const auto copy = [&](const Tensor& from, int64_t i, uint8_t* out) {
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

  void Attend(const PagedStep& step, nb::handle queries, nb::handle output) {
    RaiseIfWrong(attention_->team().Check());
    if (!step.IsOf(attention_.get())) ThrowPagedError("step: is of another PagedAttention than this layer");
    const Tensor q = TensorOf(queries, "queries", 3), out = TensorOf(output, "output", 3);
    const Geometry& g = attention_->geometry();
    for (const auto& [tensor, name] : {std::pair(&q, "queries"), std::pair(&out, "output")}) {
      if (tensor->dtype() != nb::dtype<float>() || static_cast<int64_t>(tensor->shape(0)) < step.num_tokens() ||
          static_cast<int>(tensor->shape(1)) != g.num_q_heads || static_cast<int>(tensor->shape(2)) != g.head_dim ||
          tensor->stride(2) != 1 || tensor->stride(1) != g.head_dim) {
        ThrowPagedError(absl::StrCat(name, ": must be float32 [", step.num_tokens(), " or more, ", g.num_q_heads, ", ",
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

  // Returns the bytes of codes once those of every block are made.
  int64_t most_bytes() const { return cells_->BytesFor(attention_->num_blocks() * attention_->settings().block_size); }

  nb::dict Counts() {
    const std::lock_guard lock(mutex_);
    nb::dict out, declined;
    out["coded"] = counts_.coded, out["exact"] = counts_.exact, out["gated"] = counts_.gated;
    out["prompt_tokens"] = counts_.prompt_tokens;
    out["prompt_runs_seen"] = counts_.prompt_runs_seen, out["prompt_runs_taken"] = counts_.prompt_runs_taken;
    out["encoded_keys"] = counts_.encoded_keys;
    out["changed_windows"] = counts_.changed_windows, out["found_windows"] = counts_.found_windows;
    out["decode_us"] = counts_.decode_us, out["prompt_us"] = counts_.prompt_us, out["encode_us"] = counts_.encode_us;
    for (const auto& [why, count] : counts_.declined) declined[why.c_str()] = count;
    out["declined"] = declined;
    out["bytes"] = cells_->bytes();
    const LayerGate::Reading reading = gate_.Read();
    out["gate_checks"] = reading.checks, out["gate_lost"] = reading.lost;
    out["gate_exact"] = reading.exact, out["gate_lost_then"] = reading.lost_then;
    return out;
  }

 private:
  // A part of a decoding row's query heads, of one KV head.
  struct Item {
    const DecodeRow* row;
    int head, first, count;  // first: of the KV head's group
    bool coded;
  };

  void AttendPrompt(const PromptRows& prompt) {
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
        batch, params,
        [this](int count, const std::function<void(int)>& task) { attention_->team().Run(count, task); });
    counts_.prompt_tokens += prompt.mask->tokens();
    counts_.prompt_runs_seen += counts.seen, counts_.prompt_runs_taken += counts.taken;
  }

  void Decode(const PagedStep& step) {
    Refit(step);
    const auto count = step.decodes().size();
    coded_.assign(count, false);
    for (size_t i = 0; i < count; ++i) {
      const DecodeRow& row = step.decodes()[i];
      if (row.seen.zone.empty()) {
        ++counts_.exact;
      } else if (gate_.Exact()) {
        ++counts_.gated;
      } else {
        coded_[i] = Prepare(row);
      }
    }
    Answer(step);
    for (size_t i = 0; i < count; ++i) {
      if (coded_[i]) ++counts_.coded, Watch(step.decodes()[i]);
    }
  }

  // Codes suit the longest text. A prompt's are made anew at once, for none of it has been encoded; where a text grows
  // as it decodes, one head of one layer is made anew at a time.
  void Refit(const PagedStep& step) {
    for (int head; (head = cells_->FindOutgrown(longest_prompt_)) >= 0;) RefitHead(head, step);
    if (++since_refit_ < kStepsOfRefit) return;
    const int head = cells_->FindOutgrown(step.longest());
    if (head < 0) return;
    since_refit_ = 0;
    RefitHead(head, step);
  }
  void RefitHead(int head, const PagedStep& step) {
    if (!cells_->Refit(head, std::max(longest_prompt_, step.longest())).ok())
      ++counts_.declined["codes for a longer text"];
  }

  // Codes of all that a row attends by them. False: it is attended exactly.
  bool Prepare(const DecodeRow& row) {
    if (!cells_->Reserve(row.seen.end_window() * kWindowTokens).ok()) return Decline("no memory for codes");
    runs_.clear();
    cells_->ListStale(row.seen, kRunWindows, &runs_);
    if (runs_.empty()) return true;
    const int64_t begin = NowMicros();
    std::atomic<bool> finite{true};
    attention_->team().Run(static_cast<int>(runs_.size()), [&](int i) {
      if (!cells_->Encode(runs_[i], rows_)) finite = false;
    });
    for (const CellLayer::Run& run : runs_) counts_.encoded_keys += run.count * kWindowTokens;
    counts_.encode_us += NowMicros() - begin;
    return finite || Decline("a key or value that is not finite");
  }

  bool Decline(const char* why) {
    ++counts_.declined[why];
    return false;
  }

  void Answer(const PagedStep& step) {
    std::vector<uint8_t> changed = AttendRows(step, std::vector<uint8_t>(step.decodes().size(), 1));
    if (std::none_of(changed.begin(), changed.end(), [](uint8_t x) { return x != 0; })) return;
    // Somebody else has written into the cache. What differs is encoded anew.
    for (size_t i = 0; i < changed.size(); ++i) {
      if (changed[i] == 0) continue;
      const DecodeRow& row = step.decodes()[i];
      for (int head = 0; head < cells_->num_heads(); ++head) {
        counts_.found_windows += cells_->Verify(head, row.seen.end_window() * kWindowTokens, rows_);
      }
    }
    for (size_t i = 0; i < coded_.size(); ++i) {  // neighbours may share windows
      if (coded_[i]) coded_[i] = Prepare(step.decodes()[i]), changed[i] = 1;
    }
    const std::vector<uint8_t> again = AttendRows(step, changed);
    std::vector<uint8_t> left(again.size(), 0);
    for (size_t i = 0; i < again.size(); ++i) {
      if (again[i] == 0) continue;
      coded_[i] = Decline("rows that change while they are read");
      left[i] = 1;
    }
    AttendRows(step, left);
  }

  // Answers those rows that are not 0. Returns which of them have read a row that is not the one that was encoded.
  std::vector<uint8_t> AttendRows(const PagedStep& step, const std::vector<uint8_t>& which) {
    ListItems(step, which);
    std::vector<std::atomic<bool>> changed(which.size());
    const Geometry& g = attention_->geometry();
    attention_->team().Run(static_cast<int>(items_.size()), [&](int i) {
      const Item& item = items_[i];
      const int64_t at = (item.head * g.group() + item.first) * int64_t{g.head_dim};
      const float* const queries = queries_ + item.row->token * query_stride_ + at;
      float* const out = output_ + item.row->token * output_stride_ + at;
      if (!item.coded) {
        cells_->AttendExactly(item.head, queries, item.count, item.row->seen, rows_, out);
      } else if (!cells_->Attend(item.head, queries, item.count, item.row->seen, rows_, top_k(), out)) {
        changed[item.row - step.decodes().data()] = true;
      }
    });
    std::vector<uint8_t> out(which.size());
    std::copy(changed.begin(), changed.end(), out.begin());
    return out;
  }

  // The longest rows first, which the thread takes that is done first; and heads that would leave threads idle at the
  // end are shared, query head by query head.
  void ListItems(const PagedStep& step, const std::vector<uint8_t>& which) {
    const Geometry& g = attention_->geometry();
    items_.clear();
    for (size_t i = 0; i < which.size(); ++i) {
      if (which[i] == 0) continue;
      for (int h = 0; h < g.num_kv_heads; ++h) items_.push_back({&step.decodes()[i], h, 0, g.group(), coded_[i] != 0});
    }
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return Work(a) > Work(b); });
    const auto total = static_cast<int>(items_.size());
    const int threads = attention_->team().threads(), rest = total % threads;
    if (rest == 0 || g.group() == 1) return;
    const std::vector<Item> whole(items_.end() - rest, items_.end());
    items_.resize(total - rest);
    const int parts = std::min(g.group(), (threads + rest - 1) / rest);
    for (const Item& item : whole) {
      const auto begin = [&](int part) { return (g.group() * part + parts - 1) / parts; };
      for (int p = 0; p < parts; ++p) {
        Item part = item;
        part.first = begin(p), part.count = begin(p + 1) - begin(p);
        items_.push_back(part);
      }
    }
  }
  static int64_t Work(const Item& item) { return item.coded ? item.row->length / 8 : item.row->length; }

  int top_k() const { return gate_.Widened(attention_->context()->config().search.top_k); }

  void Watch(const DecodeRow& row) {
    const Geometry& g = attention_->geometry();
    const auto head = static_cast<int>(gate_.checks_due() % g.num_kv_heads);  // they take turns
    if (cells_->ReadsWhole(row.seen, g.group(), top_k()) || !gate_.Due(row.length)) return;
    const float* const queries = queries_ + row.token * query_stride_ + int64_t{head} * g.group() * g.head_dim;
    gate_.Checked(cells_->Lost(head, queries, g.group(), row.seen, rows_, top_k()));
  }

  const std::shared_ptr<PagedAttention> attention_;
  std::mutex mutex_;
  LayerGate gate_;
  const Tensor cache_;  // keeps it alive
  uint8_t* base_ = nullptr;
  CellRows rows_;
  std::unique_ptr<CellLayer> cells_;
  int64_t longest_prompt_ = 0;
  int since_refit_;  // steps; layers take turns
  PagedCounts counts_;
  // State of the call that is running.
  const float* queries_ = nullptr;
  float* output_ = nullptr;
  int64_t query_stride_ = 0, output_stride_ = 0;
  std::vector<uint8_t> coded_;  // by decoding row
  std::vector<Item> items_;
  std::vector<CellLayer::Run> runs_;
};

std::shared_ptr<PagedAttention> MakeAttention(int num_layers, int num_q_heads, int num_kv_heads, int head_dim,
                                              int64_t num_blocks, int block_size, int64_t max_tokens, float scale,
                                              float softcap, int64_t min_tokens, int top_k, double beta, int refine,
                                              int sink, int local, bool tail, double gate, double prompt_mass,
                                              int64_t prompt_min, const std::string& profile, const std::string& rope,
                                              const std::string& rope_style, int threads) {
  if (num_blocks < 1) ThrowPagedError("num_blocks: must be positive");
  if (block_size < kWindowTokens || block_size % kWindowTokens != 0) {
    ThrowPagedError(absl::StrCat("block_size: must be a multiple of ", kWindowTokens, ", not ", block_size));
  }
  if (num_blocks * block_size > std::numeric_limits<int32_t>::max()) ThrowPagedError("num_blocks: 2^31 slots or more");
  if (min_tokens < 1) ThrowPagedError("min_tokens: must be positive");
  if (!(prompt_mass > 0 && prompt_mass <= 1)) ThrowPagedError("prompt_mass: must be in (0, 1]");
  if (!(gate >= 0 && gate <= 1)) ThrowPagedError("gate: must be in [0, 1]");
  if (rope_style != "half_split" && rope_style != "interleaved") {
    ThrowPagedError(absl::StrCat("rope_style: must be half_split or interleaved, not '", rope_style, "'"));
  }
  const Rope::Style style = rope_style == "interleaved" ? Rope::Style::kInterleaved : Rope::Style::kHalfSplit;
  PagedSettings settings;
  settings.block_size = block_size, settings.min_tokens = min_tokens, settings.gate = gate;
  settings.prompt.mass = prompt_mass, settings.prompt.least = prompt_min;
  CellConfig& config = settings.cells;
  config.geometry = {.num_layers = num_layers,
                     .num_q_heads = num_q_heads,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim,
                     .dtype = DType::kFloat16,
                     .rope = {}};
  config.search.top_k = top_k, config.search.beta = beta, config.search.refine = refine;
  config.search.softmax_scale = scale;
  config.sink = sink, config.local = local, config.tail = tail, config.softcap = softcap;
  config.capacity = max_tokens, config.shortest = min_tokens;
  if (!profile.empty()) {
    absl::StatusOr<Profile> read = ReadProfile(profile);
    RaiseIfWrong(read.status());
    if (!rope.empty()) {
      absl::StatusOr<Rope> turns = ParseRope(rope, head_dim, style, max_tokens);
      RaiseIfWrong(turns.status());
      config.geometry.rope = *std::move(turns);
    }
    config.codec.name = "balanced", config.codec.profile_name = profile;
    config.codec.profile = std::make_shared<const Profile>(*std::move(read));
    // docs/decisions/codecs/0038-two-bits-for-small-heads.md
    const CodeBits bits = head_dim <= 64 ? CodeBits{2, 2.125} : UsualBits(head_dim);
    config.codec.coarse_bits = bits.coarse, config.codec.total_bits = bits.total;
  }
  CellConfig slots = config;
  slots.sink = 0;  // windows begin with the first slot; what a text's first tokens are, a step tells
  absl::StatusOr<std::unique_ptr<CellContext>> context = CellContext::Create(slots);
  RaiseIfWrong(context.status());
  return std::make_shared<PagedAttention>(std::move(settings), num_blocks, *std::move(context), threads);
}

}  // namespace

void AddPagedClasses(nb::module_& module) {
  using nb::arg;
  nb::class_<PagedStep>(module, "PagedStep").def_prop_ro("num_tokens", &PagedStep::num_tokens);
  nb::class_<PagedLayer>(module, "PagedLayer")
      .def("write", &PagedLayer::Write, arg("keys"), arg("values"), arg("slots"))
      .def("attend", &PagedLayer::Attend, arg("step"), arg("queries"), arg("output"))
      .def("counts", &PagedLayer::Counts)
      .def_prop_ro("most_bytes", &PagedLayer::most_bytes);
  nb::class_<PagedAttention>(module, "PagedAttention")
      .def(nb::new_(&MakeAttention), nb::kw_only(), arg("num_layers"), arg("num_q_heads"), arg("num_kv_heads"),
           arg("head_dim"), arg("num_blocks"), arg("block_size"), arg("max_tokens"), arg("scale"),
           arg("softcap") = 0.0f, arg("min_tokens") = 2048, arg("top_k") = 100, arg("beta") = 0.0, arg("refine") = 100,
           arg("sink") = 64, arg("local") = 256, arg("tail") = true, arg("gate") = kGateBound, arg("prompt_mass") = 1.0,
           arg("prompt_min") = 2048, arg("profile") = "", arg("rope") = "", arg("rope_style") = "half_split",
           arg("threads") = 0)
      .def(
          "layer",
          [](const std::shared_ptr<PagedAttention>& self, int number, nb::handle cache) {
            return std::make_unique<PagedLayer>(self, number, cache);
          },
          arg("number"), arg("cache"))
      .def("step", &PagedAttention::Step, arg("query_start"), arg("seq_lens"), arg("block_table"),
           nb::keep_alive<0, 1>())
      .def_prop_ro("openmp", [](PagedAttention& self) { return self.team().openmp(); })
      .def_prop_ro("threads", [](PagedAttention& self) { return self.team().threads(); });
}

}  // namespace seine::python
