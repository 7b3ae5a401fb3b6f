// See step_report.h.
#include "bench/tables/step_report.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/report/table.h"
#include "kernels/codecs/codec_traits.h"

namespace seine::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* ScopeName(Scope scope) { return scope == Scope::kPerQHead ? "q_head" : "kv_head"; }

OrderedJson JsonOf(const StepFigures& f) {
  return {{"retrieve", f.retrieve}, {"attend", f.attend}, {"exact", f.exact}};
}

OrderedJson JsonOf(const std::optional<double>& v) { return v ? OrderedJson(*v) : OrderedJson(nullptr); }

// GB/s that a step's bytes come at.
double Rate(double bytes, double us) { return bytes / us / 1e3; }

std::string DescribeStep(const StepReport& r) {
  const LayerDataOptions& d = r.shape;
  const SearchParams& s = r.options.search;
  std::string text = absl::StrFormat(
      "%s, %d %s of %d KV heads x %d query heads, head_dim %d, fp16; sink %d, local %d\n",
      r.data.synthetic ? absl::StrCat("synthetic: ", r.data.source) : absl::StrCat("trace: ", r.data.source), d.layers,
      d.layers == 1 ? "layer" : "layers", d.kv_heads, d.group, d.head_dim, d.sink, d.local);
  absl::StrAppend(&text, "codec ", r.options.codec.name);
  if (TraitsOf(r.options.codec.name).needs_profile) {
    absl::StrAppend(&text, " ", r.options.codec.coarse_bits, "+",
                    r.options.codec.total_bits - r.options.codec.coarse_bits, " bits, own profile");
  }
  absl::StrAppend(&text, "; top-k ", s.top_k);
  if (s.recall_target > 0) {
    absl::StrAppend(&text, ", recall target ", s.recall_target);
  } else {
    absl::StrAppend(&text,
                    s.candidate_fraction > 0 ? absl::StrCat(", beta ", s.candidate_fraction) : ", the usual beta");
  }
  absl::StrAppend(&text, ", refine ", s.rescore_k, ", scope ", ScopeName(s.scope),
                  " (attend: q_head, with the tail)\n");
  if (!r.machine.empty()) absl::StrAppend(&text, r.machine, "; ");
  absl::StrAppendFormat(&text, "%s, %s; reads %.1f GB/s from memory; caches %s before each step\n", r.simd_target,
                        r.options.threads == 1 ? "one thread" : absl::StrCat(r.options.threads, " threads"),
                        r.bandwidth_gb_s, r.options.cold ? "emptied" : "left as they were");
  const double largest = r.rows.empty() ? 0 : static_cast<double>(r.rows.back().code_bytes);
  absl::StrAppendFormat(&text, "codes of all layers: %.1f MB at %d keys; last cache: %.1f MB\n", largest / 1e6,
                        r.rows.empty() ? 0 : r.rows.back().num_keys, static_cast<double>(r.cache_bytes) / 1e6);
  return text;
}

std::string DescribeBreakEven(const StepReport& r, const char* name, double StepFigures::*method) {
  const BreakEven at = FindBreakEven(r.rows, method);
  if (at.num_keys) return absl::StrFormat("%s: faster than exact attention from %.0f keys on\n", name, *at.num_keys);
  return absl::StrCat(name, at.faster ? ": faster than exact attention at every length measured\n"
                                      : ": slower than exact attention at the longest length measured\n");
}

OrderedJson BreakEvenSide(const BreakEven& at) {
  if (at.num_keys) return "crosses";
  return at.faster ? "faster_everywhere" : "slower_at_the_longest";
}

OrderedJson StepRowJson(const StepRow& row) {
  const StageTimes& t = row.stage_us;
  OrderedJson j;
  j["num_keys"] = row.num_keys;
  j["num_tokens"] = row.num_tokens;
  j["us_retrieve"] = row.us.retrieve;
  j["us_attend"] = row.us.attend;
  j["us_exact"] = row.us.exact;
  j["recall_at_k"] = row.recall_at_k;
  j["stage_us"] = {{"prepare", t.prepare}, {"scan", t.scan},     {"select", t.select},
                   {"rerank", t.rerank},   {"refine", t.refine}, {"other", JsonOf(t.other)}};
  const AttendTimes& a = row.attend_us;
  j["attend_stage_us"] = {
      {"search", JsonOf(a.search)}, {"dense", a.dense}, {"chosen", a.chosen}, {"tail", a.tail}, {"softmax", a.softmax}};
  j["floor_us"] = JsonOf(row.floor_us);
  j["bytes"] = JsonOf(row.bytes);
  j["exact_gb_s"] = Rate(row.bytes.exact, row.us.exact);
  j["speedup_over_exact"] = {{"retrieve", row.us.exact / row.us.retrieve}, {"attend", row.us.exact / row.us.attend}};
  j["candidates"] = row.candidates;
  j["rounds"] = row.rounds;
  j["code_bytes"] = row.code_bytes;
  return j;
}

}  // namespace

std::string RenderText(const StepReport& report) {
  std::vector<std::vector<std::string>> times = {{"keys", "retrieve us", "attend us", "exact us", "retrieve x",
                                                  "attend x", "exact GB/s",
                                                  absl::StrCat("recall@", report.options.search.top_k), "rounds"}};
  std::vector<std::vector<std::string>> stages = {{"retrieve, us", "prepare", "scan", "select", "rerank", "refine",
                                                   "other", "floor", "attend's floor", "exact's floor"}};
  std::vector<std::vector<std::string>> parts = {{"attend, us", "search", "dense", "chosen", "tail", "softmax"}};
  const auto us = [](double v) { return absl::StrFormat("%.0f", v); };
  for (const StepRow& row : report.rows) {
    times.push_back({absl::StrCat(row.num_keys), us(row.us.retrieve), us(row.us.attend), us(row.us.exact),
                     absl::StrFormat("%.2f", row.us.exact / row.us.retrieve),
                     absl::StrFormat("%.2f", row.us.exact / row.us.attend),
                     absl::StrFormat("%.1f", Rate(row.bytes.exact, row.us.exact)),
                     absl::StrFormat("%.4f", row.recall_at_k), absl::StrCat(row.rounds)});
    const StageTimes& t = row.stage_us;
    stages.push_back({absl::StrCat(row.num_keys), us(t.prepare), us(t.scan), us(t.select), us(t.rerank), us(t.refine),
                      t.other ? us(*t.other) : "-", us(row.floor_us.retrieve), us(row.floor_us.attend),
                      us(row.floor_us.exact)});
    const AttendTimes& a = row.attend_us;
    parts.push_back({absl::StrCat(row.num_keys), a.search ? us(*a.search) : "-", us(a.dense), us(a.chosen), us(a.tail),
                     us(a.softmax)});
  }
  return absl::StrCat(DescribeStep(report), "\n", RenderTable(times), "\n", RenderTable(stages), "\n",
                      RenderTable(parts), "\n", DescribeBreakEven(report, "retrieve", &StepFigures::retrieve),
                      DescribeBreakEven(report, "attend", &StepFigures::attend));
}

OrderedJson ToJson(const StepReport& report) {
  const LayerDataOptions& d = report.shape;
  const SearchParams& s = report.options.search;
  const BreakEven retrieve = FindBreakEven(report.rows, &StepFigures::retrieve);
  const BreakEven attend = FindBreakEven(report.rows, &StepFigures::attend);
  OrderedJson j;
  j["break_even_keys"] = {{"retrieve", JsonOf(retrieve.num_keys)}, {"attend", JsonOf(attend.num_keys)}};
  j["break_even_side"] = {{"retrieve", BreakEvenSide(retrieve)}, {"attend", BreakEvenSide(attend)}};
  j["read_bandwidth_gb_s"] = report.bandwidth_gb_s;
  j["machine"] = report.machine;
  j["simd_target"] = report.simd_target;
  j["backend"] = "cpu";
  j["threads"] = report.options.threads;
  j["cache"] = report.options.cold ? "cold" : "warm";
  j["last_cache_bytes"] = report.cache_bytes;
  j["source"] = report.data.source;
  j["synthetic"] = report.data.synthetic;
  if (!report.data.model.empty()) j["model"] = report.data.model;
  j["layers"] = d.layers;
  j["num_kv_heads"] = d.kv_heads;
  j["num_q_heads"] = d.kv_heads * d.group;
  j["head_dim"] = d.head_dim;
  j["dtype"] = NameOf(DType::kFloat16);
  j["sink"] = d.sink;
  j["local"] = d.local;
  j["codec"] = report.options.codec.name;
  if (TraitsOf(report.options.codec.name).needs_profile) {
    j["profile"] = "own";
    j["coarse_bits"] = report.options.codec.coarse_bits;
    j["total_bits"] = report.options.codec.total_bits;
  }
  j["top_k"] = s.top_k;
  j["beta"] = s.recall_target > 0 ? OrderedJson(nullptr) : OrderedJson(s.candidate_fraction);
  j["recall_target"] = s.recall_target > 0 ? OrderedJson(s.recall_target) : OrderedJson(nullptr);
  j["refine"] = s.rescore_k;
  j["scope"] = ScopeName(s.scope);
  j["rows"] = OrderedJson::array();
  for (const StepRow& row : report.rows) j["rows"].push_back(StepRowJson(row));
  return j;
}

Plot MakePlot(const StepReport& report) {
  Plot plot;
  plot.title = "A decode step of one layer";
  plot.subtitle =
      absl::StrCat(report.data.synthetic ? "synthetic " : "", report.data.source, ", ", report.shape.kv_heads,
                   " KV heads x ", report.shape.group, " query heads, head_dim ", report.shape.head_dim, ", ",
                   report.options.threads, report.options.threads == 1 ? " thread" : " threads");
  plot.x_label = "keys in the zone (log)";
  plot.y_label = "microseconds a step (log)";
  plot.log_x = plot.log_y = true;
  const std::pair<const char*, double StepFigures::*> curves[] = {
      {"Retrieve", &StepFigures::retrieve}, {"Attend", &StepFigures::attend}, {"exact attention", &StepFigures::exact}};
  for (const auto& [name, method] : curves) {
    Series series{name, {}, true, true};
    for (const StepRow& row : report.rows) series.points.emplace_back(row.num_keys, row.us.*method);
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace seine::bench
