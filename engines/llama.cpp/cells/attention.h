// Attention nodes and cache writes of one llama.cpp context.
#ifndef SEINE_ENGINES_LLAMA_CPP_CELLS_ATTENTION_H_
#define SEINE_ENGINES_LLAMA_CPP_CELLS_ATTENTION_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/llama.cpp/cells/huge_pages.h"
#include "engines/llama.cpp/cells/prompt.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/ggml/outside_writes.h"
#include "engines/llama.cpp/node_computer.h"
#include "engines/llama.cpp/profiles/model_profile.h"
#include "ggml-backend.h"
#include "index/cells/cell_layer.h"
#include "index/layer_gate.h"

namespace seine::llama {

// Answers by an index in this process.
class Attention final : public NodeComputer, private WriteListener {
 public:
  ~Attention() override;

  ggml_status Attend(ggml_tensor* node) override;
  ggml_status SetRows(ggml_tensor* node) override;
  ggml_status Shift(ggml_tensor* node) override;

 private:
  static constexpr int64_t kRunWindows = 8;  // that a task encodes

  // One layer of one stream.
  struct Stream {
    std::unique_ptr<CellLayer> cells;
    CellRows rows;
    int64_t end = 0;       // behind the last cell that was seen written, or attended
    int64_t length = 0;    // positions of the longest text whose keys were seen written
    bool suspect = false;  // a row that an answer read was not the one that was encoded
    bool encoded = false;  // some window was, since the stream began
    std::pair<int64_t, int64_t> keys_written, values_written;  // the last ranges
    std::pair<int64_t, int64_t> run;                           // both written, up to the last range, without a gap
  };
  struct Item {  // what one task attends
    Stream* stream;
    int64_t index, token;  // index: of the stream in the node
    const SeenCells* seen;
    int kv_head, first, count;  // query heads of the group
  };

  struct Layer {
    CacheFacts facts;
    std::string unfit;               // why it cannot be answered; empty: it can
    CellContext* context = nullptr;  // of its shape and capacity
    std::unique_ptr<LayerGate> gate;
    std::vector<Stream> streams;
  };

  // By the data of its key cache; made when it is first asked for. nullptr: nothing is known of it yet.
  Layer* LayerOf(const void* keys);
  std::string MakeStreams(Layer* layer);
  // That of layers of this shape and capacity, made where there is none; nullptr: `why` says why not.
  CellContext* ContextOf(const CacheFacts& facts, std::string* why);
  CellConfig ConfigOf(const CacheFacts& facts) const;
  // Puts the first cells of a stream into huge pages.
  void UseHugePages(const CacheFacts& facts, const CellRows& rows, int64_t cells);
  void Wrote(Layer* layer, int64_t begin, int64_t end, bool keys);  // cells of all streams in a row
  // Of a stream whose text has outgrown its codes: those of one head of one layer a step, so that none waits for long;
  // a prompt's at once.
  void RefitOne(Layer* layer, int64_t first_stream, int64_t num_streams);
  void RefitAll(Stream* stream);
  void Refit(Stream* stream, int head);
  // Reads off the write of a graph's first keys how long the text is.
  void ReadLength(const Layer& layer, const ggml_tensor* rows);
  void WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) override;
  // Encodes runs_. False: a row is not finite.
  bool Encode(Stream* stream);
  void Verify(Stream* stream, int64_t end);
  // Codes of the windows that are attended by them.
  bool Prepare(Stream* stream, const SeenCells& seen);
  // Why the node cannot be answered; empty: it is.
  std::string Answer(const AttentionNode& node);
  void ListItems(const AttentionNode& node, Layer* layer, int64_t first_stream);
  // Chooses `top_k` tokens a query head; 0: all are attended. False: some row was not the one that was encoded.
  bool AttendItems(const AttentionNode& node, int top_k);
  // Checks an answer of the codes now and then. A layer that loses too much attends exactly from then on.
  void Watch(const AttentionNode& node, Layer* layer, int64_t first_stream);
  void Check(const AttentionNode& node);
  void SayAnswered(const AttentionNode& node);  // this context's first that is
  ggml_status AttendPrompt(ggml_tensor* tensor, const AttentionNode& node);
  // Computes it by llama.cpp's own kernel as well.
  void ComparePrompt(ggml_tensor* tensor, const AttentionNode& node, int64_t ns);
  ggml_status Decline(ggml_tensor* node, const std::string& why);

  std::vector<std::unique_ptr<CellContext>> contexts_;
  ModelProfile profile_;
  std::map<const void*, Layer> layers_;
  std::map<ggml_backend_buffer_t, HugePages> huge_pages_;
  std::vector<SeenCells> seen_;  // [streams][tokens] of the node that is answered
  std::vector<Item> items_;
  std::vector<CellLayer::Run> runs_;
  PromptAttention prompt_{&team_};
  int64_t answered_ = 0, prompts_ = 0;
  size_t since_refit_ = 0;  // nodes: a step has one a layer
  int64_t length_ = 0;      // 1 + the largest position of the tokens that are written; 0: it cannot be read
  int length_layer_ = std::numeric_limits<int>::max();  // that it was read at
  bool said_ = false;                                   // that attention is answered
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_CELLS_ATTENTION_H_
