#include "engines/llama.cpp/bench/setup/row_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

namespace seine::llama {

Json KeyOf(const Options& o) {
  std::map<std::string, std::string> settings;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    if (name.rfind("SEINE_", 0) != 0 || name == "SEINE_LOG" || name == "SEINE_REPORT") continue;
    settings[name] = text.substr(std::min(text.size(), name.size() + 1));
  }
  Json key = {{"version", 4},  // of what is measured
              {"model", std::filesystem::path(o.model).filename().string()},
              {"steps", o.steps},
              {"threads", o.threads},
              {"yarn", o.yarn},
              {"repeat", o.repeat},
              {"top_k", o.top_k},
              {"settings", settings}};
  if (o.context > 0) key["context"] = o.context;
  const std::string types = o.cache_type_k + " " + o.cache_type_v;
  if (types != "f16 f16") key["cache_types"] = types;
  return key;
}

RowFile::RowFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  std::ifstream file(path);
  std::uintmax_t whole = 0;  // bytes of the lines that are rows
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains("key") && row.contains("value") && !file.eof()) {
      rows_.emplace_back(row["key"], row["value"]);
      whole += line.size() + 1;
    } else if (!file.eof()) {
      Fail("--rows " + path + ": line " + std::to_string(rows_.size() + 1) + " is no row");
    } else {
      std::fprintf(stderr, "seine-llama-bench: --rows %s: its last line was cut off, and is measured again\n",
                   path.c_str());
    }
  }
  file.close();
  std::error_code none;
  if (std::filesystem::exists(path, none)) std::filesystem::resize_file(path, whole);
  if (!rows_.empty()) {
    std::fprintf(stderr, "seine-llama-bench: --rows %s: %zu rows were measured before\n", path.c_str(), rows_.size());
  }
}

const Json* RowFile::Find(const Json& key) const {
  for (const auto& [of, value] : rows_) {
    if (of == key) return &value;
  }
  return nullptr;
}

void RowFile::Add(const Json& key, Json value) {
  if (path_.empty()) return;
  std::ofstream file(path_, std::ios::app);
  file << Json{{"key", key}, {"value", value}}.dump() << '\n';
  if (!file.flush()) Fail("--rows " + path_ + ": cannot be written");
  rows_.emplace_back(key, std::move(value));
}

}  // namespace seine::llama
