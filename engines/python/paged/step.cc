#include "engines/python/paged/step.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "engines/python/paged/tensors.h"
#include "engines/python/values/errors.h"

namespace seine::python {
namespace {

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

std::vector<int64_t> BlocksOf(const PagedAttention& attention, const HostTensor& table, size_t text, int64_t length) {
  const int64_t size = attention.settings().block_size, count = (length + size - 1) / size;
  if (count > static_cast<int64_t>(table.shape(1))) {
    ThrowValueError(
        absl::StrCat("block_table: text ", text, " of ", length, " tokens has ", table.shape(1), " blocks"));
  }
  const auto* of_text = static_cast<const int32_t*>(table.data()) + static_cast<int64_t>(text) * table.stride(0);
  std::vector<int64_t> blocks(count);
  for (int64_t b = 0; b < count; ++b) {
    blocks[b] = of_text[b * table.stride(1)];
    if (blocks[b] < 0 || blocks[b] >= attention.num_blocks()) {
      ThrowValueError(
          absl::StrCat("block_table: text ", text, " has block ", blocks[b], " of ", attention.num_blocks()));
    }
  }
  return blocks;
}

// Windows are of slots, and a block is a whole number of them. Those between the text's first `sink` tokens and its
// last `local` ones are the zone, but for blocks that may have no codes.
void Divide(const PagedAttention& attention, const std::vector<int64_t>& blocks, DecodeRow* row) {
  const PagedSettings& settings = attention.settings();
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
    const int64_t from = within(sink);
    int64_t to = within(end);
    if (to > from && blocks[b] >= attention.code_blocks()) row->cut = true, to = from;
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

}  // namespace

PagedStep::PagedStep(PagedAttention* attention, nb::handle query_start, nb::handle seq_lens, nb::handle block_table)
    : attention_(attention) {
  Team* const team = &attention->team();
  RaiseIfWrong(team->Check());
  const std::vector<int64_t> starts = IntegersOf(query_start, "query_start");
  const std::vector<int64_t> lengths = IntegersOf(seq_lens, "seq_lens");
  const HostTensor blocks = TensorOf(block_table, "block_table", 2);
  if (starts.size() != lengths.size() + 1 || blocks.shape(0) < lengths.size()) {
    ThrowValueError("query_start: must have one number more than seq_lens, and block_table a row for each");
  }
  if (blocks.dtype() != nb::dtype<int32_t>()) ThrowValueError("block_table: must be int32");
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i], rows = starts[i + 1] - starts[i];
    if (rows < 0 || starts[i] < 0 || rows > length) {
      ThrowValueError(absl::StrCat("seq_lens: text ", i, " has ", length, " tokens and ", rows, " queries"));
    }
    if (rows == 0) continue;
    const std::vector<int64_t> of_text = BlocksOf(*attention, blocks, i, length);
    longest_ = std::max(longest_, length);
    if (rows >= kPromptTokens) longest_prompt_ = std::max(longest_prompt_, length);
    if (rows == 1) {
      decodes_.push_back({starts[i], length, length >= attention->settings().min_tokens, false, {}});
      Divide(*attention, of_text, &decodes_.back());
    } else {
      prompts_.push_back({starts[i], length, of_text,
                          std::make_unique<PromptMask>(
                              rows, length, attention->geometry().group(),
                              [team](int count, const std::function<void(int)>& task) { team->Run(count, task); })});
    }
  }
  num_tokens_ = starts.back();
}

}  // namespace seine::python
