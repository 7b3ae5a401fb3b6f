// See drift_report.h.
#include "bench/tables/drift_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/report/table.h"

namespace seine::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string SourceOf(const DatasetInfo& data) {
  return absl::StrCat(data.synthetic ? "synthetic: " : "trace: ", data.source);
}

// Columns of the curve in the table: at most so many, spread over the decode.
std::vector<size_t> Shown(size_t points) {
  constexpr size_t kMost = 5;
  const size_t count = std::min(points, kMost);
  std::vector<size_t> shown;
  for (size_t i = 0; i < count; ++i) shown.push_back(count == 1 ? 0 : i * (points - 1) / (count - 1));
  return shown;
}

std::string Share(double v) { return absl::StrFormat("%.4f", v); }

}  // namespace

std::string RenderText(const DriftReport& report) {
  const DriftOptions& o = report.options;
  const std::vector<DriftPoint>& positions = report.rows.front().curve;
  const std::vector<size_t> shown = Shown(positions.size());
  std::vector<std::vector<std::string>> table = {{"method", "bytes/key"}};
  for (const size_t i : shown) table[0].push_back(absl::StrCat("at ", positions[i].position));
  table[0].insert(table[0].end(), {"worst head at the end", "kept"});
  for (const DriftRow& row : report.rows) {
    std::vector<std::string>& line = table.emplace_back();
    line = {row.method, absl::StrFormat("%.1f", row.bytes_per_key)};
    for (const size_t i : shown) line.push_back(Share(row.curve[i].recall));
    line.push_back(Share(row.curve.back().worst_head));
    line.push_back(Share(row.kept()));
  }
  std::string text = absl::StrFormat(
      "%s: %d heads x %d query heads, head_dim %d, %s; prefill %d tokens, decode %d\nrecall@%d of %d..%d candidates; "
      "sink %d, local %d; queries of the last %d positions\n",
      SourceOf(report.data), report.data.num_heads(), report.data.group, report.data.head_dim,
      NameOf(report.data.dtype), o.prefill, o.decode, o.top_k,
      o.CandidatesOf(positions.front().position - o.zone.sink - o.zone.local),
      o.CandidatesOf(positions.back().position - o.zone.sink - o.zone.local), o.zone.sink, o.zone.local, o.queries);
  if (report.schedule == "paper") absl::StrAppend(&text, "the paper's candidates: its authors' shares\n");
  if (!report.profile.empty()) absl::StrAppend(&text, "seine's profile: ", report.profile, "\n");
  const auto best = std::max_element(report.rows.begin(), report.rows.end(), [](const DriftRow& a, const DriftRow& b) {
    return a.curve.back().recall < b.curve.back().recall;
  });
  return absl::StrCat(text, "\n", RenderTable(table), "\nkept: recall at the end over recall at the prefill's end\n",
                      absl::StrFormat("at the end %s finds most: %.1f%% of the exact top %d, %.1f%% of what it found "
                                      "at the prefill's end\n",
                                      best->method, 100 * best->curve.back().recall, o.top_k, 100 * best->kept()));
}

OrderedJson ToJson(const DriftReport& report) {
  const DriftOptions& o = report.options;
  const DatasetInfo& d = report.data;
  OrderedJson j;
  j["source"] = d.source;
  j["synthetic"] = d.synthetic;
  if (!d.model.empty()) j["model"] = d.model;
  if (!d.text.empty()) j["text"] = d.text;
  j["layers"] = d.layers;
  j["num_kv_heads"] = d.num_kv_heads;
  j["num_q_heads"] = d.num_kv_heads * d.group;
  j["head_dim"] = d.head_dim;
  j["dtype"] = NameOf(d.dtype);
  j["seed"] = report.seed;
  j["prefill"] = o.prefill;
  j["decode"] = o.decode;
  j["sink"] = o.zone.sink;
  j["local"] = o.zone.local;
  j["queries"] = o.queries;
  j["top_k"] = o.top_k;
  j["beta"] = o.beta;
  j["schedule"] = report.schedule;
  if (!report.profile.empty()) j["profile"] = report.profile;
  j["rows"] = OrderedJson::array();
  for (const DriftRow& row : report.rows) {
    OrderedJson& r = j["rows"].emplace_back();
    r["method"] = row.method;
    r["bytes_per_key"] = row.bytes_per_key;
    r["recall_first"] = row.recall_first();
    r["recall_last"] = row.recall_last();
    r["worst_head_first"] = row.curve.front().worst_head;
    r["worst_head_last"] = row.curve.back().worst_head;
    r["kept"] = row.kept();
    r["curve"] = OrderedJson::array();
    for (const DriftPoint& p : row.curve) {
      r["curve"].push_back({{"position", p.position}, {"recall", p.recall}, {"worst_head", p.worst_head}});
    }
  }
  return j;
}

Plot MakePlot(const DriftReport& report) {
  Plot plot;
  plot.title = absl::StrFormat("Recall@%d over a decode", report.options.top_k);
  plot.subtitle = absl::StrCat(SourceOf(report.data), ", trained on a prefill of ", report.options.prefill, " tokens");
  plot.x_label = "tokens so far";
  plot.y_label = absl::StrCat("recall@", report.options.top_k);
  for (const DriftRow& row : report.rows) {
    Series series{row.method, {}, true, true};
    for (const DriftPoint& p : row.curve) series.points.emplace_back(static_cast<double>(p.position), p.recall);
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace seine::bench
