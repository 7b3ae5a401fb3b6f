// SEINE_ENDPOINT: attention nodes and cache writes of one llama.cpp context whose keys and values a seined holds too.
//
// Positions count, not cells. They are read off the input of the RoPE that a block's keys come out of. Rows of one
// sequence go to the server in their order, layer by layer. The program may then remove old cells from the engine's
// cache (llama_memory_seq_rm): a token attends every position before it that was not rolled back.
//
// A token at position p whose mask shows p + 1 cells misses none: llama.cpp's kernel is right then, and computes
// prompts and all that cannot be answered. Anything else that the server cannot answer fails the decode.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engines/llama.cpp/node.h"
#include "engines/llama.cpp/node_computer.h"
#include "engines/llama.cpp/outside_writes.h"
#include "engines/llama.cpp/remote/held_cells.h"
#include "engines/llama.cpp/remote/session.h"

namespace seine::llama {

// Answers by a server.
class RemoteAttention final : public NodeComputer, private WriteListener {
 public:
  ~RemoteAttention() override;

  ggml_status Attend(ggml_tensor* node) override;
  ggml_status SetRows(ggml_tensor* node) override;
  ggml_status Shift(ggml_tensor* node) override;

 private:
  // The tokens of the graph that is computed.
  struct Block {
    std::vector<int64_t> positions;     // of the tokens; empty: they cannot be read
    std::vector<int64_t> cells;         // that their rows are written to
    const ggml_tensor* mask = nullptr;  // that it was planned with, at its first layer; nullptr: it was not yet
    bool complete = false;              // the engine's cache lacks no cell
    bool answered = false;              // by the server; else llama.cpp attends, and rows are appended alone
    std::string why;                    // nothing goes to the server; empty: it does
  };

  // Of one cache.
  struct Cells {
    int64_t count = 0;
    size_t bytes = 0;  // of each
  };

  void ReadBlock(const ggml_tensor* node, int layer);  // GGML_OP_SET_ROWS of keys
  // Whether llama.cpp's kernel sees all cells that it should.
  bool IsComplete(const AttentionNode& node) const;
  // At a block's first layer: how it is computed. The return value is block_.why.
  std::string Plan(const AttentionNode& node);
  absl::Status Restart(const AttentionNode& node);
  // Why the block does not go on where the server's sequence, or its first positions, end; empty: it does.
  std::string CheckPast(const AttentionNode& node) const;
  // Why the tokens' masks show other cells than those of their own sequence up to themselves; empty: they do not.
  std::string CheckMask(const AttentionNode& node) const;
  std::string CheckLayer(const AttentionNode& node, int layer) const;  // as the first was; empty: it is
  // Hears, from a cache's first attention on, which cells change outside of graphs. False: it cannot.
  bool ListenTo(const AttentionNode& node);
  void WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) override;
  absl::Status Exchange(const AttentionNode& node, int layer);  // rows, and queries where the server answers
  void Count();                                                 // what the session sent since
  // By llama.cpp's kernel where no cell is missing, else not at all. Nothing goes to the server from then on, until a
  // text begins at position 0.
  ggml_status Decline(const AttentionNode& node, const std::string& why);

  std::unique_ptr<Session> session_;
  SessionConfig config_;   // of session_
  SessionCounts counted_;  // in the report
  HeldCells held_;
  Block block_;
  int layer_ = 0;                           // that was written last
  bool pending_ = false;                    // rows of layer_ were not sent
  std::string lost_, unfit_;                // why nothing goes to the server; unfit_: for good
  std::map<const uint8_t*, Cells> caches_;  // of keys and of values, by their data
  std::vector<char> keys_, values_;         // scratch: rows of a block
  std::vector<float> queries_;              // scratch
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_ATTENTION_H_
