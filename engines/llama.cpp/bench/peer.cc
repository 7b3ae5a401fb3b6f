#include "engines/llama.cpp/bench/peer.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engines/llama.cpp/bench/setup/contexts.h"

namespace seine::llama {

namespace {

std::string TextOf(const llama_model* model, const std::vector<llama_token>& tokens) {
  std::string text(tokens.size() * 16 + 64, '\0');
  const auto write = [&] {
    return llama_detokenize(llama_model_get_vocab(model), tokens.data(), static_cast<int32_t>(tokens.size()),
                            text.data(), static_cast<int32_t>(text.size()), /*remove_special=*/true,
                            /*unparse_special=*/false);
  };
  int32_t length = write();
  if (length < 0) text.resize(-length), length = write();
  text.resize(length);
  return text;
}

// The median of a value over the peer's rows of that length; null where one of them lacks it.
Json MedianOf(const Json& peer, int cells, const char* name) {
  std::vector<double> values;
  for (const Json& row : peer.at("rows")) {
    if (row.at("cells") != cells) continue;
    if (row.at(name).is_null()) return nullptr;
    values.push_back(row.at(name));
  }
  return values.empty() ? Json(nullptr) : Json(Median(values));
}

}  // namespace

Json MeasurePeer(const llama_model* model, const Options& o, const std::vector<std::vector<llama_token>>& texts) {
  Json prompts = Json::array();
  const size_t of_ours = o.whole ? 1 : texts.size();  // that are measured
  for (const int cells : o.cells) {
    for (size_t t = 0; t < of_ours; ++t) {
      const std::vector<llama_token> tokens(texts[t].begin(), texts[t].begin() + cells);
      prompts.push_back({{"cells", cells}, {"tokens", tokens}, {"text", o.random ? "" : TextOf(model, tokens)}});
    }
  }
  const std::string asked = std::filesystem::temp_directory_path() / ("seine-peer-" + std::to_string(getpid()));
  std::ofstream(asked) << Json{{"steps", o.steps}, {"prompts", prompts}};
  FILE* const pipe = popen((o.peer + " --prompts '" + asked + "'").c_str(), "r");
  std::string answer;
  char part[4096];
  for (size_t count; pipe != nullptr && (count = std::fread(part, 1, sizeof(part), pipe)) > 0;) {
    answer.append(part, count);
  }
  const bool ended = pipe != nullptr && pclose(pipe) == 0;
  std::filesystem::remove(asked);
  const Json peer = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!ended || !peer.is_object()) Fail("--peer: the command has no times; its reason is above");
  return peer;
}

void AddPeer(const Json& peer, const Options& o, Json* rows) {
  for (Json& row : *rows) {
    const int cells = row.at("cells");
    const Json prompt = MedianOf(peer, cells, "prompt_ms"), ms = MedianOf(peer, cells, "ms");
    row["peer_prompt_tokens"] = MedianOf(peer, cells, "prompt_tokens");
    row["peer_prompt_ms"] = prompt;
    row["peer_ms"] = ms;
    if (!o.whole) continue;
    const bool all = !prompt.is_null() && !ms.is_null();
    row["peer_first_ms"] = all ? Json(prompt.get<double>() + ms.get<double>()) : Json(nullptr);
    row["peer_whole_ms"] = all ? Json(prompt.get<double>() + o.steps * ms.get<double>()) : Json(nullptr);
  }
}

}  // namespace seine::llama
