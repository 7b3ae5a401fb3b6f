// A file of rows, one JSON object a line, to which each is added when it is measured: a run that was cut off goes on
// from there.
#ifndef SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_ROW_FILE_H_
#define SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_ROW_FILE_H_

#include <string>

#include <nlohmann/json.hpp>

#include "engines/llama.cpp/bench/setup/bench_options.h"

namespace seine::llama {

using Json = nlohmann::ordered_json;

// What a row depends on besides its text and length: flags, and the environment's SEINE_*.
Json KeyOf(const Options& options);

class RowFile {
 public:
  // Reads what is there. Empty path: nothing is kept. Fails where a line is no row, but for a last one that was cut
  // off.
  explicit RowFile(const std::string& path);

  // The value of a row that was measured under this key; nullptr: none was.
  const Json* Find(const Json& key) const;
  // Fails where it cannot be written.
  void Add(const Json& key, Json value);

 private:
  const std::string path_;
  std::vector<std::pair<Json, Json>> rows_;
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_BENCH_SETUP_ROW_FILE_H_
