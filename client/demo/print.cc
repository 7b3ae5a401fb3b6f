#include "client/demo/print.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "profile/spelling.h"

namespace seine::demo {
namespace {

using cli::FormatBytes;
using cli::FormatDouble;

constexpr double kGain = 1.1;  // times as fast: less is noise on a machine that does other work too
constexpr double kQuiet = .9;  // share of a processor below which that work is told

// Returns the bytes of one stored key of a head: the index keeps keys as they came.
int StoredKeyBytes(const Trace& trace) { return trace.head_dim() * static_cast<int>(client::SizeOf(trace.dtype())); }

constexpr std::pair<const char*, client::Transport> kTransports[] = {
    {"auto", client::Transport::kAuto},
    {"shm", client::Transport::kSharedMemory},
    {"blocking", client::Transport::kBlocking},
    {"polling", client::Transport::kPolling},
};

std::string NameOf(client::Transport transport) {
  for (const auto& [name, value] : kTransports) {
    if (value == transport) return name;
  }
  return "unknown";
}

// "131,072"
std::string Count(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string Milliseconds(double us) { return absl::StrCat(FormatDouble(us / 1000, us < 10000 ? 2 : 1), " ms"); }

std::string Microseconds(const Percentiles& value) {
  return absl::StrCat("p50 ", FormatDouble(value.p50, 0), " us, p99 ", FormatDouble(value.p99, 0), " us");
}

std::string Percent(double share, int digits) { return absl::StrCat(FormatDouble(100 * share, digits), " %"); }

std::string GainOf(const AttentionTimes& t) {
  if (t.speedup() >= kGain) return absl::StrCat(FormatDouble(t.speedup(), t.speedup() < 10 ? 1 : 0), " times as fast");
  return t.speedup() > 1 / kGain ? "no gain" : "slower";
}

std::string CarriedBy(const Report& report) {
  if (report.transport == client::Transport::kSharedMemory) return "over the same-host channel";
  return report.fallback.empty() ? "over gRPC" : absl::StrCat("over gRPC (", report.fallback, ")");
}

std::string Header(const Trace& trace, const ReplayOptions& options) {
  return absl::StrCat(trace.model(), " reading ", trace.text(), "\n", Count(trace.num_tokens()), " tokens, layers ",
                      absl::StrJoin(trace.model_layers(), ", "), ", ", trace.num_q_heads(), " query heads on ",
                      trace.num_kv_heads(), " KV heads, head_dim ", trace.head_dim(), "; the last ", options.steps,
                      " tokens decoded one by one\n");
}

std::string QualityText(const Trace& trace, const ReplayOptions& options, const Report& report) {
  const auto covered = [](double share, double tokens) {
    return absl::StrCat(Percent(share, 1), "  from ", FormatDouble(tokens, 0), " tokens a head");
  };
  return absl::StrCat(
      "\nAttention that a step covers, of all ", Count(trace.num_tokens()), " tokens'\n",
      cli::ToString({
          {"  sink + local alone", covered(report.dense_covered, report.tokens_dense)},
          {"  with Seine", covered(report.attention_covered, report.tokens_read)},
          {absl::StrCat("  with the exact top ", options.top_k), covered(report.exact_covered, report.tokens_read)},
      }),
      "\nWhat Seine finds (head_dim ", trace.head_dim(), ")\n",
      cli::ToString({
          {absl::StrCat("  recall@", options.top_k),
           absl::StrCat(FormatDouble(report.recall, 3), "  of each head's exact top ", options.top_k, " (worst head ",
                        FormatDouble(report.recall_worst_head, 3), ")")},
          {"  attention mass", absl::StrCat(FormatDouble(report.attention_mass, 4), "  of what the exact top ",
                                            options.top_k, " would have")},
      }));
}

std::string MemoryText(const Trace& trace, const Report& report) {
  const int key_bytes = StoredKeyBytes(trace);
  const int64_t held = report.code_bytes + report.store_bytes;
  const auto share = [&](int64_t bytes) {
    return Percent(static_cast<double>(bytes) / static_cast<double>(report.full_cache_bytes), 0);
  };
  return absl::StrCat(
      "\nMemory (head_dim ", trace.head_dim(), ")\n",
      cli::ToString({
          {"  bytes a key", absl::StrCat(FormatDouble(report.bytes_per_key, 1), " of codes + ", key_bytes, " of the ",
                                         SpellValue("DType", static_cast<int>(trace.dtype())),
                                         " key, kept for refine = ", FormatDouble(report.bytes_per_key + key_bytes, 1),
                                         "; a full fp16 cache has ", 4 * trace.head_dim(), ", key and value")},
          {"  codes", absl::StrCat(FormatBytes(report.code_bytes), " = ", share(report.code_bytes),
                                   " of the full fp16 cache of ", FormatBytes(report.full_cache_bytes))},
          {"  codes + keys", absl::StrCat(FormatBytes(held), " = ", share(held), " of it, all that Seine holds")},
      }));
}

std::string RetrievalText(const Trace& trace, const Report& report) {
  return absl::StrCat(
      "\nRetrieval on this machine (", report.threads, " thread", report.threads == 1 ? "" : "s", ", ",
      report.simd_target, "), ", CarriedBy(report), "\n",
      cli::ToString({
          {"  a layer", absl::StrCat(Microseconds(report.layer_us), "  append + retrieve; in the index p50 ",
                                     FormatDouble(report.server_us.p50, 0), " us")},
          {"  decode step", absl::StrCat(Microseconds(report.step_us), "  ", trace.num_layers(), " layers")},
          {"  prefill", absl::StrCat(FormatDouble(report.append_tokens_per_second / 1000, 0),
                                     " thousand tokens of a layer a second, over gRPC")},
      }));
}

// Set to the right in its column.
std::string Right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string TimesText(const Trace& trace, const Measured& measured) {
  const size_t width = Count(measured.attention.times.back().num_tokens).size();
  cli::Table table({"  tokens", "dense p50", "Seine p50", "gain"});
  for (const AttentionTimes& t : measured.attention.times) {
    table.AddRow({"  " + Right(Count(t.num_tokens), width), Right(Milliseconds(t.dense_us.p50), 9),
                  Right(Milliseconds(t.seine_us.p50), 9), GainOf(t)});
  }
  std::string text = absl::StrCat(
      "\nA layer's token appended and attended, dense and with Seine by turns, ", CarriedBy(measured.report), "\n",
      table.ToString(),
      "  dense: all tokens, by this server's own exact kernel; gain: of medians or of means, the lesser\n");
  if (measured.attention.times.back().copies > 1) {
    absl::StrAppend(&text, "  beyond ", Count(trace.num_tokens()),
                    " tokens the trace's rows come again and again: for times alone, never for recall\n");
  }
  const std::string& stopped = measured.attention.stopped;
  if (!stopped.empty()) absl::StrAppend(&text, "  longer texts found no memory: ", stopped, "\n");
  double share = 1;
  for (const AttentionTimes& t : measured.attention.times) share = std::min(share, t.processor_share);
  if (share < kQuiet) {
    absl::StrAppend(&text, "  Other programs ran meanwhile: a thread got ", Percent(share, 0),
                    " of a processor. Times are longer for it, and vary; run this again when they rest.\n");
  }
  return text;
}

// The least length from which on Seine gains at every one measured; nullptr: at none.
const AttentionTimes* FirstGain(const std::vector<AttentionTimes>& times) {
  const AttentionTimes* first = nullptr;
  for (auto t = times.rbegin(); t != times.rend() && t->speedup() >= kGain; ++t) first = &*t;
  return first;
}

std::string Verdict(const AttentionTimes& t) {
  return absl::StrCat("  At ", Count(t.num_tokens), " tokens a layer's attention takes ", Milliseconds(t.seine_us.p50),
                      " instead of ", Milliseconds(t.dense_us.p50), ": ", GainOf(t), ".\n");
}

std::string Conclusion(const Trace& trace, const ReplayOptions& options, const Measured& measured) {
  const Report& report = measured.report;
  const AttentionTimes* gain = FirstGain(measured.attention.times);
  const int cache_bytes = 2 * StoredKeyBytes(trace);
  std::string text = "\nWhat you gain on this machine\n";
  text += Verdict(measured.attention.times.front());
  if (measured.attention.times.size() > 1) text += Verdict(measured.attention.times.back());
  if (gain == nullptr) {
    absl::StrAppend(&text, "  Up to ", Count(measured.attention.times.back().num_tokens),
                    " tokens Seine gains no time here: leave attention dense, or try longer texts (--long-tokens).\n");
  } else if (gain != &measured.attention.times.front()) {
    absl::StrAppend(&text, "  It pays from some ", Count(gain->num_tokens),
                    " tokens on. Leave shorter texts dense (dense_threshold).\n");
  }
  absl::StrAppend(&text, "  A head reads ", FormatDouble(report.tokens_read, 0), " of ", Count(trace.num_tokens()),
                  " tokens. They hold ", Percent(report.attention_covered, 1), " of its attention, and ",
                  Percent(report.recall, 1), " of its top ", options.top_k, ".\n  Codes add ",
                  FormatDouble(report.bytes_per_key, 1), " bytes to the ", cache_bytes,
                  " of a key and its value: ", Percent(report.bytes_per_key / cache_bytes, 0), ".\n");
  return absl::StrCat(text, "Next: your model with one line of Python (docs/python.md), llama.cpp or C++ ",
                      "(docs/engines.md); beside others: docs/benchmarks.md\n");
}

cli::Json ToJson(const AttentionTimes& t) {
  return {{"num_tokens", t.num_tokens},
          {"copies", t.copies},
          {"dense_p50_us", t.dense_us.p50},
          {"dense_p99_us", t.dense_us.p99},
          {"dense_mean_us", t.dense_mean_us},
          {"dense_index_p50_us", t.dense_index_us.p50},
          {"dense_tokens", t.dense_tokens},
          {"seine_p50_us", t.seine_us.p50},
          {"seine_p99_us", t.seine_us.p99},
          {"seine_mean_us", t.seine_mean_us},
          {"seine_index_p50_us", t.seine_index_us.p50},
          {"seine_tokens", t.seine_tokens},
          {"processor_share", t.processor_share},
          {"speedup", t.speedup()}};
}

}  // namespace

std::vector<std::string> TransportNames() {
  std::vector<std::string> names;
  for (const auto& [name, value] : kTransports) names.emplace_back(name);
  return names;
}

std::optional<client::Transport> TransportOf(const std::string& name) {
  for (const auto& [known, value] : kTransports) {
    if (known == name) return value;
  }
  return std::nullopt;
}

const char kJsonHelp[] =
    R"(-o json prints one object. Times are microseconds, medians (p50) and 99th percentiles (p99); shares are of 1:
    model, text, layers, num_tokens, num_q_heads, num_kv_heads, head_dim
                                the trace
    codec, profile, steps, top_k, beta, refine
                                the settings
    transport, transport_fallback
                                what carried the steps: shm, blocking or polling; why it was gRPC
    num_queries                 positions times query heads times layers, over which means are taken
    recall_at_k, recall_at_k_worst_head
                                share of the exact top k that was found
    attention_mass              softmax mass of what was found, over that of the exact top k
    attention_covered, attention_covered_sink_local, attention_covered_exact
                                share of all attention that a head reads, with Seine; sink and local
                                alone; with the exact top k
    tokens_read, tokens_sink_local
                                tokens that a head reads at a step; sink and local of them
    layer_p50_us, layer_p99_us  a layer's append and retrieve, written to answered
    server_p50_us, server_p99_us
                                of which in the index
    step_p50_us, step_p99_us    the layers of a step together
    append_tokens_per_s         prefill over gRPC, tokens of a layer a second
    bytes_per_key, bytes_per_key_with_store
                                of a head: its code; with the key kept for refine
    code_bytes, store_bytes, full_cache_bytes
                                codes; keys kept; keys and values of all tokens in 16 bits
    simd_target, threads        of the server
    dense_attention_p50_us, dense_attention_p99_us, seine_attention_p50_us, seine_attention_p99_us
                                a layer's attention at num_tokens, in the index
    attention_stopped           why greater lengths are missing: no memory; empty: none is
    attention_times             one object for each length at which attention is timed:
      num_tokens, copies        the length; how often the trace's rows come. Above 1: for times alone
      dense_p50_us, dense_p99_us, dense_mean_us, seine_p50_us, seine_p99_us, seine_mean_us
                                a layer's append and attention, written to answered: over all tokens
                                by the same server's exact kernel; over what Seine finds
      dense_index_p50_us, seine_index_p50_us
                                of which in the index
      dense_tokens, seine_tokens
                                tokens that a head reads
      processor_share           of a processor that a thread got just then; below 1 others ran
      speedup                   dense over Seine: of the medians or of the means, the lesser
)";

cli::Json ToJson(const Trace& trace, const ReplayOptions& options, const Measured& measured) {
  const Report& report = measured.report;
  const AttentionTimes& recorded = measured.attention.times.front();
  cli::Json times = cli::Json::array();
  for (const AttentionTimes& t : measured.attention.times) times.push_back(ToJson(t));
  return {{"model", trace.model()},
          {"text", trace.text()},
          {"layers", trace.model_layers()},
          {"num_tokens", trace.num_tokens()},
          {"num_q_heads", trace.num_q_heads()},
          {"num_kv_heads", trace.num_kv_heads()},
          {"head_dim", trace.head_dim()},
          {"codec", options.profile.empty() ? "rsq" : "balanced"},
          {"profile", options.profile},
          {"steps", options.steps},
          {"top_k", options.top_k},
          {"beta", options.beta},
          {"refine", options.refine},
          {"transport", NameOf(report.transport)},
          {"transport_fallback", report.fallback},
          {"num_queries", report.num_queries},
          {"recall_at_k", report.recall},
          {"recall_at_k_worst_head", report.recall_worst_head},
          {"attention_mass", report.attention_mass},
          {"attention_covered", report.attention_covered},
          {"attention_covered_sink_local", report.dense_covered},
          {"attention_covered_exact", report.exact_covered},
          {"tokens_read", report.tokens_read},
          {"tokens_sink_local", report.tokens_dense},
          {"dense_attention_p50_us", recorded.dense_index_us.p50},
          {"dense_attention_p99_us", recorded.dense_index_us.p99},
          {"seine_attention_p50_us", recorded.seine_index_us.p50},
          {"seine_attention_p99_us", recorded.seine_index_us.p99},
          {"attention_times", std::move(times)},
          {"attention_stopped", measured.attention.stopped},
          {"step_p50_us", report.step_us.p50},
          {"step_p99_us", report.step_us.p99},
          {"layer_p50_us", report.layer_us.p50},
          {"layer_p99_us", report.layer_us.p99},
          {"server_p50_us", report.server_us.p50},
          {"server_p99_us", report.server_us.p99},
          {"append_tokens_per_s", report.append_tokens_per_second},
          {"bytes_per_key", report.bytes_per_key},
          {"bytes_per_key_with_store", report.bytes_per_key + StoredKeyBytes(trace)},
          {"code_bytes", report.code_bytes},
          {"store_bytes", report.store_bytes},
          {"full_cache_bytes", report.full_cache_bytes},
          {"simd_target", report.simd_target},
          {"threads", report.threads}};
}

std::string ToText(const Trace& trace, const ReplayOptions& options, const Measured& measured) {
  return absl::StrCat(Header(trace, options), QualityText(trace, options, measured.report),
                      MemoryText(trace, measured.report), RetrievalText(trace, measured.report),
                      TimesText(trace, measured), Conclusion(trace, options, measured));
}

}  // namespace seine::demo
