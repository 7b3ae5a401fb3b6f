// One cache of a llama.cpp context, whose rows a seined holds too. A model with layers that slide has two.
//
// Positions count, not cells. Rows of each text (remote_texts.h) go to the server in their order, layer by layer. The
// program may then remove old cells from the engine's cache (llama_memory_seq_rm): a token attends every position of
// its text before it that was not rolled back.
//
// A token at position p whose mask shows p + 1 cells misses none: llama.cpp's kernel is right then, and computes
// prompts and all that cannot be answered. Anything else that the server cannot answer fails the decode.
//
// Layers that slide are llama.cpp's. Their cells of the window must all be there, else the decode fails.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_CACHE_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_CACHE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/ggml/outside_writes.h"
#include "engines/llama.cpp/ggml/team.h"
#include "engines/llama.cpp/remote/remote_texts.h"
#include "engines/llama.cpp/remote/session.h"

namespace seine::llama {

// Calls come in the order of a graph's nodes: Begin, then of each layer its rows and its attention.
class RemoteCache final : private WriteListener {
 public:
  explicit RemoteCache(Team* team) : team_(team) {}
  ~RemoteCache();

  void Begin();  // the next graph
  // A layer's keys are written to these cells. False: those of this graph's layers before it went to others.
  bool Writes(int layer, const std::vector<int64_t>& cells);
  // Returns true at the graph's first attention over the cache, whose mask is then read. `positions`: of the graph's
  // tokens, which live as long as the graph; empty: they cannot be read.
  bool Sees(const AttentionNode& node, const std::vector<int64_t>* positions);

  // Facts of the graph that is computed, once its mask was read.
  bool seen() const { return block_.mask != nullptr; }
  bool whole() const { return block_.whole; }  // its tokens see all positions up to their own
  // What the tokens' counts of cells show within one graph, in which no cell is removed: one that sees the cell before
  // its own, and no more cells than that one's, has a window of so many. 0: they show none.
  int64_t WindowShown(const AttentionNode& node) const;
  int64_t last_count() const { return block_.counts.empty() ? 0 : block_.counts.back(); }
  bool is_untold() const { return block_.untold; }

  // Tell how its layers attend, from then on. The server is needed no more for those that slide.
  void SetSlides(int64_t window);
  void SetSeesAll() { sees_all_ = true; }
  bool slides() const { return window_ > 0; }
  bool is_known() const { return sees_all_ || slides(); }

  ggml_status Attend(const AttentionNode& node, int layer);
  // By llama.cpp, where layers that lack positions may slide, which another cache of the graph is still to tell.
  // Nothing of these texts goes to the server from then on.
  ggml_status AttendUntold(const AttentionNode& node, const std::string& why);
  // By llama.cpp's kernel where no cell is missing, else not at all. Nothing of these texts goes to the server from
  // then on.
  ggml_status Decline(const AttentionNode& node, const std::string& why);
  // Rows are turned where they lie: `shifts` [cells], by so many positions; nullptr: it cannot be read.
  void Shift(const ggml_tensor* shifts);
  // Behind a layer: memory of old cells goes back to the system, where settings() say so and the server has their rows.
  void GiveBack(int layer);

 private:
  static constexpr char kSlide[] = "layers that slide";

  // Tokens of the graph that is computed, of one text, whose positions follow each other.
  struct Run {
    RemoteText* text = nullptr;
    int64_t position = 0;         // of the first
    std::vector<int64_t> tokens;  // of the graph
    bool answered = false;        // by the server; else llama.cpp attends, and rows are appended alone
  };

  // The tokens of the graph that is computed.
  struct Block {
    const std::vector<int64_t>* positions = nullptr;
    std::vector<int64_t> cells;         // that their rows are written to, counted over all streams
    std::vector<int64_t> counts;        // of the cells that each token sees; empty: they cannot be counted
    const ggml_tensor* mask = nullptr;  // that it was planned with, at its first layer; nullptr: it was not yet
    std::vector<bool> lacks;            // which of these have no row any more
    bool whole = false;                 // the engine's cache lacks no cell
    bool untold = false;                // AttendUntold
    bool planned = false;
    bool again = false;     // it was planned a second time, with another session
    std::vector<Run> runs;  // of tokens whose rows go to the server
    bool kernel = true;     // llama.cpp attends: there are tokens that the server does not answer
    bool fails = false;     // cells are missing of tokens that the server does not answer
    std::string why;        // there are tokens whose rows do not go to the server; empty: there are none
  };

  // Cells of one cache.
  struct Cells {
    int64_t count = 0;
    size_t bytes = 0;  // of each
  };

  // Where a stream of the node's begins among the cells of all streams.
  static int64_t FirstCell(const AttentionNode& node, int64_t stream);

  ggml_status AttendWindow(const AttentionNode& node);
  // llama.cpp's kernel is right for it.
  bool IsWhole(size_t token) const {
    return !block_.counts.empty() && block_.counts[token] == Position(token) + 1 && !block_.lacks[token];
  }
  bool IsAllWhole() const;
  int64_t Position(size_t token) const { return (*block_.positions)[token]; }
  // At a block's first layer: how each token is computed.
  void Plan(const AttentionNode& node);
  std::string Unfit(const AttentionNode& node) const;  // for any token
  std::string Open(const AttentionNode& node);         // a session, where it is time for one
  // The token's row goes to the server: it joins a run. The return value is why not.
  std::string PlanToken(const AttentionNode& node, size_t token);
  // Why a token's mask shows other cells than those of its text up to itself; empty: it does not.
  std::string CheckMask(const RemoteText& text, size_t token);
  // Looks for the text of which the seen cells hold rows, where these are not all known. `before`: as
  // RemoteTexts::Find.
  std::string Find(int64_t position, int64_t before);
  void LoseBlock(const std::string& why);                              // nothing of it goes to the server
  std::string CheckLayer(const AttentionNode& node, int layer) const;  // as the first was; empty: it is
  // Hears, from a cache's first attention on, which cells change outside of graphs. False: it cannot.
  bool ListenTo(const AttentionNode& node);
  void WritesOutside(const uint8_t* at, const uint8_t* data, size_t size) override;
  absl::Status Exchange(const AttentionNode& node, int of_model);  // rows, and queries where the server answers
  void Fail(const absl::Status& status);                           // what an exchange that failed leaves
  void Count();                                                    // what the session sent since

  Team* const team_;
  RemoteTexts texts_;
  SessionConfig config_;     // of the session
  std::vector<int> layers_;  // of the model that lie in the cache, ascending: the server and profiles count them from 0
  SessionCounts counted_;    // in the report
  Block block_;
  int layer_ = 0;         // that was written last
  bool pending_ = false;  // rows of layer_ were not sent
  bool sees_all_ = false;
  bool in_chunks_ = false;                            // tokens see more cells than window_ at times
  int64_t window_ = 0;                                // cells that a token sees at most; 0: it is not known to slide
  std::string unfit_;                                 // why nothing goes to the server, for good
  std::chrono::steady_clock::time_point retry_ = {};  // to open a session
  CacheFacts deepest_;                                // layer of the cache
  std::vector<int64_t> seen_;                         // scratch: cells that a token sees, but those of its block
  std::map<const uint8_t*, Cells> caches_;            // of keys and of values, by their data
  std::vector<std::pair<uint8_t*, size_t>> written_outside_;  // of them, since memory went back: rows may be zeros
  std::vector<char> keys_, values_;                           // scratch: rows of a block
  std::vector<float> queries_, log_sum_exp_;                  // scratch
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_CACHE_H_
