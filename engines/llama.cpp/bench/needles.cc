#include "engines/llama.cpp/bench/needles.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "bench/report/progress.h"

namespace seine::llama {

namespace {

constexpr const char* kCities[kMostNeedles] = {
    "Paris",    "London", "Berlin", "Madrid",  "Vienna", "Prague", "Dublin",  "Lisbon",  "Athens",  "Oslo",  "Warsaw",
    "Budapest", "Moscow", "Cairo",  "Nairobi", "Lagos",  "Tokyo",  "Seoul",   "Beijing", "Delhi",   "Hanoi", "Manila",
    "Sydney",   "Lima",   "Bogota", "Havana",  "Quito",  "Boston", "Chicago", "Denver",  "Toronto", "Mexico"};

struct Needle {
  std::vector<llama_token> sentence, question, answer;
};

std::vector<llama_token> Tokens(const llama_model* model, const std::string& text) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int count = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                                   tokens.data(), static_cast<int32_t>(tokens.size()), false, false);
  if (count < 1) Fail("--needles: the model's tokeniser refuses a sentence");
  tokens.resize(count);
  return tokens;
}

Needle MakeNeedle(const llama_model* model, int i) {
  const std::string asks = std::string("\nThe secret number of ") + kCities[i] + " is";
  const std::string number = std::to_string(10000 + (i + 1) * 7919 % 90000);
  Needle needle = {Tokens(model, asks + " " + number + ".\n"), Tokens(model, asks), Tokens(model, asks + " " + number)};
  // What the question and the whole have in common is asked, for a token may hold a part of both.
  const auto differ = std::mismatch(needle.question.begin(), needle.question.end(), needle.answer.begin()).first;
  const auto common = differ - needle.question.begin();
  needle.question.resize(common);
  needle.answer.erase(needle.answer.begin(), needle.answer.begin() + common);
  return needle;
}

// `cells` tokens: the text, with needle i at depth (i + 1/2) / n.
std::vector<llama_token> Hide(const std::vector<llama_token>& text, const std::vector<Needle>& needles, int cells) {
  int hidden = 0;
  for (const Needle& needle : needles) hidden += static_cast<int>(needle.sentence.size());
  const int own = cells - hidden, n = static_cast<int>(needles.size());
  if (own < hidden)
    Fail("--needles: " + std::to_string(n) + " are more than half of " + std::to_string(cells) + " tokens");
  std::vector<llama_token> out;
  int taken = 0;
  for (int i = 0; i < n; ++i) {
    const int until = static_cast<int>(int64_t{own} * (2 * i + 1) / (2 * n));
    out.insert(out.end(), text.begin() + taken, text.begin() + until);
    out.insert(out.end(), needles[i].sentence.begin(), needles[i].sentence.end());
    taken = until;
  }
  out.insert(out.end(), text.begin() + taken, text.begin() + own);
  return out;
}

llama_token Likeliest(llama_context* context, int vocabulary) {
  const float* logits = llama_get_logits_ith(context, -1);
  return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
}

// The likeliest token at each place of the answer, which is given token by token. The context is then as before.
std::vector<llama_token> Ask(llama_context* context, int vocabulary, const Needle& needle, int cells) {
  std::vector<llama_token> said;
  Decode(context, needle.question.data(), static_cast<int>(needle.question.size()));
  for (const llama_token token : needle.answer) {
    said.push_back(Likeliest(context, vocabulary));
    if (said.size() < needle.answer.size()) Decode(context, &token, 1);
  }
  llama_memory_seq_rm(llama_get_memory(context), 0, cells, -1);
  return said;
}

// [{top_k, needles, plain_found, exact_found, seine_found, same}], a row of each top_k.
Json MeasureHidden(llama_model* model, const Plugin& plugin, const Options& o, const std::vector<llama_token>& text,
                   const std::vector<Needle>& needles, int cells, const std::vector<int>& top_k) {
  const int vocabulary = NumTokens(model);
  const ContextPair pair = MakePair(plugin, model, o, cells);
  Read(plugin, pair, Hide(text, needles, cells), cells);
  int plain_found = 0, exact_found = 0;
  std::vector<int> found(top_k.size()), same(top_k.size());
  bench::Progress progress(static_cast<int64_t>(needles.size()));
  for (const Needle& needle : needles) {
    plugin.set_mode(kPlain);
    const std::vector<llama_token> plain = Ask(pair.plain.get(), vocabulary, needle, cells);
    plain_found += plain == needle.answer ? 1 : 0;
    plugin.set_mode(kExact);
    exact_found += Ask(pair.seine.get(), vocabulary, needle, cells) == needle.answer ? 1 : 0;
    plugin.set_mode(kSeine);
    for (size_t c = 0; c < top_k.size(); ++c) {
      plugin.set_top_k(top_k[c]);
      const std::vector<llama_token> said = Ask(pair.seine.get(), vocabulary, needle, cells);
      found[c] += said == needle.answer ? 1 : 0;
      same[c] += said == plain ? 1 : 0;
    }
    progress.Step("needles asked for");
  }
  Json rows = Json::array();
  for (size_t c = 0; c < top_k.size(); ++c) {
    rows.push_back({{"top_k", top_k[c]},
                    {"needles", needles.size()},
                    {"plain_found", plain_found},
                    {"exact_found", exact_found},
                    {"seine_found", found[c]},
                    {"same", same[c]}});
  }
  return rows;
}

// Adds a text's counts to the sums of all.
void AddTo(const Json& text_rows, int cells, Json* sums) {
  if (sums->empty()) {
    for (Json row : text_rows) {
      Json with_cells = {{"cells", cells}};
      with_cells.update(row);
      sums->push_back(with_cells);
    }
    return;
  }
  for (size_t c = 0; c < text_rows.size(); ++c) {
    for (const char* count : {"needles", "plain_found", "exact_found", "seine_found", "same"}) {
      (*sums)[c][count] = (*sums)[c][count].get<int>() + text_rows[c][count].get<int>();
    }
  }
}

}  // namespace

Json MeasureNeedles(llama_model* model, const Plugin& plugin, const Options& o,
                    const std::vector<std::vector<llama_token>>& texts, const std::vector<int>& top_k, RowFile* rows) {
  std::vector<Needle> needles;
  for (int i = 0; i < o.needles; ++i) needles.push_back(MakeNeedle(model, i));
  Json out = Json::array();
  for (const int cells : o.cells) {
    Json sums = Json::array();
    for (size_t t = 0; t < texts.size(); ++t) {
      Json key = KeyOf(o);
      key["measure"] = "needles";
      key["cells"] = cells;
      key["text"] = o.texts[t];
      key["needles"] = o.needles;
      if (const Json* known = rows->Find(key)) {
        AddTo(*known, cells, &sums);
        continue;
      }
      std::fprintf(stderr, "seine-llama-bench: %d cells, %d needles, %s\n", cells, o.needles, o.texts[t].c_str());
      const Json measured = MeasureHidden(model, plugin, o, texts[t], needles, cells, top_k);
      rows->Add(key, measured);
      AddTo(measured, cells, &sums);
    }
    for (const Json& row : sums) out.push_back(row);
  }
  return out;
}

}  // namespace seine::llama
