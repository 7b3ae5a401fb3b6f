// Which rows lie in the cells of the engine's cache, and which texts on the server hold them.
//
// A row is what one token left in the cache. A text is a sequence on the server: its rows by position. No request and
// no sequence of the engine's is seen, so a token's text is told by cells: it goes on where the row of the position
// before it is, which its mask shows. Rows of a shared prefix are rows of several texts. A text that can still be gone
// on with behind another row is forked there, and never cut.
//
// Rows that come from outside of graphs, and those of an earlier run, are found again by what they are: a row of the
// deepest layer comes of all that was read before it.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_TEXTS_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_TEXTS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engines/llama.cpp/remote/session.h"

namespace seine::llama {

// An error of the server's, as it is said and counted.
std::string ServerError(const absl::Status& status);

// Hashes of a row of the deepest layer: of its key, and of key and value. 0: not known.
struct RowHash {
  static RowHash Of(const void* key, const void* value, size_t bytes);  // bytes: of each
  uint64_t key = 0, both = 0;
};

// A sequence on the server.
struct RemoteText {
  int sequence = 0;             // the session's number
  std::vector<int64_t> rows;    // [length], by position
  std::vector<RowHash> hashes;  // [length]
  int64_t readable = 0;         // below this position an unknown hash can be read off the server
  bool is_left = false;         // another text went on before its end, and it did not since
  bool found = false;           // an earlier run has made it: it is forked, and not written to
  int64_t used = 0;             // when: later ones are larger
  int64_t length() const { return static_cast<int64_t>(rows.size()); }
};

class RemoteTexts {
 public:
  // Cells of all streams of the cache, one behind another. What lies in them is not known. `kept`: texts outlive their
  // session, and another may find them.
  void SetCells(int64_t count, int64_t count_a_stream, bool kept);
  bool has_cells() const { return !cells_.empty(); }

  // Takes the place of a session that was dropped. Its sequences may be found.
  void Open(std::unique_ptr<Session> session, int deepest_layer);
  void Drop(const std::string& why);
  Session* session() const { return session_.get(); }
  const std::string& why_dropped() const { return why_dropped_; }

  void StartPlan() { planned_ = uses_; }
  // A token of the graph that is planned writes this cell.
  void Write(int64_t cell, int64_t position);
  // The server has not what lies there. `fresh`: it may have.
  void Lose(int64_t cell, const std::string& why, bool fresh);
  void Reload(int64_t cell);                                       // it was changed outside of graphs
  void SetLoaded(int64_t cell) { cells_[cell].is_loaded = true; }  // it was written there, changed or not
  void LoseAll(const std::string& why);
  // The server alone has the row: its memory was given back and reads as zeros, or such a row was loaded. No key is
  // zeros. The deepest layer's keys stay, and tell which row it was.
  bool IsGone(int64_t cell) const { return cells_[cell].gone; }
  bool IsUnseen(int64_t cell) const { return cells_[cell].row == 0 && !cells_[cell].seen; }
  void SetSeen(int64_t cell, bool zeros);  // of what an unknown cell holds
  // Runs of cells that the engine can do without, where more than `most` hold rows: each text of which cells hold rows
  // keeps its newest ones. They are gone from then on.
  std::vector<std::pair<int64_t, int64_t>> GiveBack(int64_t most);
  bool IsKnown(int64_t cell) const { return cells_[cell].row != 0; }
  bool IsFresh(int64_t cell) const { return cells_[cell].row == 0 && cells_[cell].fresh; }
  int64_t PositionIn(int64_t cell) const { return cells_[cell].position; }  // of a cell that is known
  const std::string& WhyLost(int64_t cell) const { return reasons_[cells_[cell].why]; }
  // The cell holds a row of the text, at its position there.
  bool IsOf(const RemoteText& text, int64_t cell) const;
  // The same where another text's row is the same: two went on with one token. It is the text's from then on.
  bool Adopt(const RemoteText& text, int64_t cell);

  // An empty text; nullptr: `why` says why not. An error that is not of a text alone drops the session.
  RemoteText* Begin(std::string* why);
  // The text that goes on at `position` behind the row in a cell; nullptr as above. `busy`: texts that have rows which
  // were not sent.
  RemoteText* Behind(int64_t cell, int64_t position, const std::vector<RemoteText*>& busy, std::string* why);
  void Add(RemoteText* text, int64_t cell);        // its row is the text's next
  void CutBack(RemoteText* text, int64_t length);  // here alone: the rows were not sent
  void SetHash(RemoteText* text, int64_t position, const RowHash& hash) { text->hashes[position] = hash; }

  // Looks for a text whose rows below `position` lie in fresh cells, which are all that is fresh of what a token sees.
  // `before`: the cell that is known to hold the row of the position before; -1: a fresh one does. Of rows that are
  // gone the key alone counts. False: there is none, and they are not fresh any more.
  absl::StatusOr<bool> Find(const std::vector<int64_t>& cells, int64_t position, int64_t before,
                            const std::function<RowHash(int64_t cell)>& hash_of);

  // Makes room on the server: texts of which no cell holds a row of their own go, those first that were used longest
  // ago, then one that was left; none of those that the plan uses. False: there are none.
  bool Free();
  void Remove(const RemoteText* text);
  void RemoveMade();  // all but those of an earlier run

 private:
  struct Cell {
    int64_t row = 0;         // 0: not known
    int32_t position = -1;   // of that row
    uint16_t why = 0;        // of row 0, among reasons_
    bool fresh = true;       // of row 0: it was not looked for
    bool seen = false;       // of row 0: it was looked at whether it is zeros
    bool is_loaded = false;  // the row came from outside of graphs
    bool gone = false;
  };

  uint16_t Reason(const std::string& why);
  // A row of the text at or after `position` lies in a cell; those of `but_stream` do not count.
  bool IsHeld(const RemoteText& text, int64_t position, int64_t but_stream) const;
  // Cells that were written outside of graphs have not been looked at yet, and may hold rows of any text.
  bool MayBeLoaded(int64_t but_stream) const;
  RemoteText* Add(int sequence);
  int64_t OwnRows(const RemoteText& text) const;  // that no other text has
  // No cell holds a row that it alone has. Of texts that share all that is held, the last one is held.
  bool IsUnheld(const RemoteText& text) const;
  std::vector<RemoteText*> Unheld();    // by their use
  void Forget(const RemoteText* text);  // the server has it no more
  // Removes texts that were left few rows before their end, as drafts are, and that nobody can go on with, and all but
  // so many of those that no cell holds.
  void Tidy(const RemoteText* but);
  // As the session's call; makes room where the server has none.
  absl::Status Call(const std::function<absl::Status()>& call);
  RowHash HashAt(RemoteText* text, int64_t position, absl::Status* status);

  std::unique_ptr<Session> session_;
  int deepest_ = 0;  // layer
  std::string why_dropped_;
  std::vector<Cell> cells_;
  int64_t cells_a_stream_ = 0, written_ = 0;  // written_: rows, since cells were given back
  bool kept_ = false;
  std::vector<std::string> reasons_ = {"positions before these were never seen"};
  std::list<RemoteText> texts_;
  int64_t last_row_ = 0, uses_ = 0, planned_ = 0;  // planned_: of uses_, before this plan
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_REMOTE_TEXTS_H_
