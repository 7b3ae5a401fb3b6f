// Attention of one layer over the engine's paged cache, and the codes of its slots.
//
// The cache lies in the engine's memory, [blocks, block_size, KV heads, 2 head_dim]: a key, and behind it its value.
// Codes belong to its slots (index/cells/cell_layer.h), whoever's text lies there, so that texts that share blocks
// share codes. A step says which slots each text sees, in the text's own order: sink and local are its first and last
// tokens wherever they lie.
#ifndef SEINE_ENGINES_PYTHON_PAGED_LAYER_H_
#define SEINE_ENGINES_PYTHON_PAGED_LAYER_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engines/python/paged/attention.h"
#include "engines/python/paged/step.h"
#include "engines/python/paged/tensors.h"
#include "index/cells/cell_layer.h"
#include "index/layer_gate.h"

namespace seine::python {

struct PagedCounts {
  int64_t coded = 0, exact = 0, gated = 0;  // answers of a text's newest token
  int64_t cut = 0;                          // of `coded`, those that attend some blocks exactly, for want of codes
  int64_t prompt_tokens = 0, prompt_runs_seen = 0, prompt_runs_taken = 0;
  int64_t encoded_keys = 0;
  int64_t changed_windows = 0, found_windows = 0;  // by writes; by hashes, for nobody had told of a write
  int64_t decode_us = 0, prompt_us = 0, encode_us = 0;
  std::map<std::string, int64_t> declined;  // why codes did not answer -> answers
};

// Calls come one at a time and need the GIL, which is released while they work. What is wrong is a ValueError.
class PagedLayer {
 public:
  PagedLayer(std::shared_ptr<PagedAttention> attention, int number, nb::handle cache);

  // Copies keys and values, [tokens or more, KV heads, head_dim] of the cache's dtype, to `slots` [tokens]. A token
  // whose slot is below 0 is passed over.
  void Write(nb::handle keys, nb::handle values, nb::handle slots);

  // float32 [tokens or more, query heads, head_dim], both. The step's rows are written in before.
  void Attend(const PagedStep& step, nb::handle queries, nb::handle output);

  nb::dict Counts();
  // Returns the bytes of codes once those of every block that may have them are made.
  int64_t most_bytes() const { return cells_->BytesFor(attention_->code_blocks() * attention_->settings().block_size); }

 private:
  // A part of a decoding row's query heads, of one KV head.
  struct Item {
    const DecodeRow* row;
    int head, first, count;  // first: of the KV head's group
    bool coded;
  };

  static constexpr int kStepsOfRefit = 16;  // from a head whose codes are made anew to the next

  static int64_t NowMicros();

  void AttendPrompt(const PromptRows& prompt);
  void Decode(const PagedStep& step);

  // Codes suit the longest text. A prompt's are made anew at once, for none of it has been encoded, and so are those of
  // the first text that is decoded; where a text grows as it decodes, one head of one layer is made anew at a time.
  void Refit(const PagedStep& step);
  void RefitHead(int head, const PagedStep& step);
  // Codes of all that a row attends by them. False: it is attended exactly.
  bool Prepare(const DecodeRow& row);
  bool Decline(const char* why);
  void Answer(const PagedStep& step);
  // Answers those rows that are not 0. Returns which of them have read a row that is not the one that was encoded.
  std::vector<uint8_t> AttendRows(const PagedStep& step, const std::vector<uint8_t>& which);
  // The longest rows first, which the thread takes that is done first.
  void ListItems(const PagedStep& step, const std::vector<uint8_t>& which);
  void Watch(const DecodeRow& row);
  int top_k() const { return gate_.Widened(attention_->context()->config().search.top_k); }

  const std::shared_ptr<PagedAttention> attention_;
  std::mutex mutex_;
  LayerGate gate_;
  const HostTensor cache_;  // keeps it alive
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

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_PAGED_LAYER_H_
