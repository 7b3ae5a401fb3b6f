// See report.h.
#include "bench/tables/recall_report.h"

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/report/table.h"

namespace seine::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string Number(std::optional<double> v, const char* format) {
  if (!v) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, *v);
  return text;
}

Json OrNull(std::optional<double> v) { return v ? Json(*v) : Json(nullptr); }

bool IsExactFp16(const RecallReport& report, const Row& row) {
  return row.exact && !row.peer && report.data.dtype == DType::kFloat32 &&
         row.bytes_per_key == 2.0 * report.data.head_dim;
}

std::string DataText(const RecallReport& r) {
  const DatasetInfo& d = r.data;
  std::string text = absl::StrCat(d.synthetic ? "synthetic: " : "trace: ", d.source);
  if (d.synthetic) absl::StrAppend(&text, " (synthetic, no model's keys)");
  if (!d.model.empty()) absl::StrAppend(&text, "\n  model ", d.model, "\n  text ", d.text);
  absl::StrAppendFormat(&text, "\n%s %s, %d KV heads x %d query heads, head_dim %d, %s\n",
                        d.layers.size() == 1 ? "layer" : "layers", absl::StrJoin(d.layers, ", "), d.num_kv_heads,
                        d.group, d.head_dim, NameOf(d.dtype));
  absl::StrAppendFormat(
      &text, "keys: positions [%d, %d) of %d tokens: %d a head; queries: %d a query head, %d in all\n", d.zone_begin,
      d.zone_end, d.num_tokens, d.num_keys(), d.num_positions, d.num_positions * d.group * d.num_heads());
  absl::StrAppendFormat(&text,
                        "%s backend, %s, one thread; reads %.1f GB/s from memory; caches %s before each timed answer\n",
                        r.backend, r.simd_target, r.bandwidth_gb_s, r.cold ? "emptied" : "left as they were");
  if (!r.faiss.empty()) absl::StrAppend(&text, r.faiss, "\n");
  if (!r.peers.empty()) absl::StrAppend(&text, "Python peers: ", r.peers, "\n");
  return text;
}

Json RowJson(const RecallReport& report, const Row& row) {
  const double exact_us = report.FastestExact().us_per_query;
  Json j;
  j["method"] = row.name;
  j["exact"] = row.exact;
  j["beta"] = OrNull(row.beta);
  if (row.rho) j["rho"] = *row.rho;
  if (row.recall_target) j["recall_target"] = *row.recall_target;
  j["answers"] = row.num_queries;
  j["recall_at_k"] = row.recall_at_k;
  j["recall_at_k_worst_head"] = row.recall_at_k_worst_head;
  j["attention_mass"] = OrNull(row.attention_mass);
  j["coarse_recall"] = OrNull(row.coarse_recall);
  j["bytes_per_key"] = row.bytes_per_key;
  j["scan_bytes_per_key"] = row.scan_bytes_per_key;
  j["us_per_query"] = row.us_per_query;
  j["encode_keys_per_s"] = OrNull(row.encode_keys_per_s);
  j["exact_us_per_query"] = exact_us;
  j["speedup_over_exact"] = exact_us / row.us_per_query;
  j["scan_ns_per_key"] = OrNull(row.scan_ns_per_key);
  j["scan_bandwidth_share"] = OrNull(row.scan_bandwidth_share);
  j["scan_bandwidth_share_paired"] = OrNull(row.scan_bandwidth_share_paired);
  if (row.scan_us) {
    j["stage_us"] = {{"prepare", *row.prepare_us},
                     {"scan", *row.scan_us},
                     {"select", *row.select_us},
                     {"rerank", *row.rerank_us},
                     {"refine", *row.refine_us}};
    j["candidates"] = *row.candidates;
    j["rescans"] = *row.rescans;
  }
  return j;
}

}  // namespace

const Row& RecallReport::FastestExact() const {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (!row.exact || IsExactFp16(*this, row)) continue;
    if (best == nullptr || row.us_per_query < best->us_per_query) best = &row;
  }
  return *best;  // every run measures our own
}

const Row* RecallReport::ExactFp16() const {
  for (const Row& row : rows) {
    if (IsExactFp16(*this, row)) return &row;
  }
  return nullptr;
}

std::string RenderText(const RecallReport& report) {
  const Row& fastest = report.FastestExact();
  std::vector<std::vector<std::string>> table = {
      {"method", "beta %", "rho %", absl::StrCat("recall@", report.top_k), "worst head", "mass", "coarse", "bytes/key",
       "scan B/key", "us/query", "x exact", "scan ns/key", "of best read", "of read beside", "encode M/s"}};
  for (const Row& row : report.rows) {
    const auto percent = [](std::optional<double> share) {
      return Number(share ? std::optional(100 * *share) : std::nullopt, "%.0f%%");
    };
    table.push_back(
        {row.name, Number(row.beta ? std::optional(100 * *row.beta) : std::nullopt, "%.3g"),
         Number(row.rho ? std::optional(100 * *row.rho) : std::nullopt, "%.3g"), Number(row.recall_at_k, "%.4f"),
         Number(row.recall_at_k_worst_head, "%.3f"), Number(row.attention_mass, "%.4f"),
         Number(row.coarse_recall, "%.4f"), Number(row.bytes_per_key, "%.1f"), Number(row.scan_bytes_per_key, "%.1f"),
         Number(row.us_per_query, "%.1f"), Number(fastest.us_per_query / row.us_per_query, "%.1f"),
         Number(row.scan_ns_per_key, "%.3f"), percent(row.scan_bandwidth_share),
         percent(row.scan_bandwidth_share_paired),
         Number(row.encode_keys_per_s ? std::optional(*row.encode_keys_per_s / 1e6) : std::nullopt, "%.2f")});
  }
  std::string text = DataText(report) + "\n" + RenderTable(table);
  absl::StrAppendFormat(&text, "\nfastest exact search: %s, %.1f us a query\n", fastest.name, fastest.us_per_query);
  const Row& asked = report.rows[report.primary];
  if (asked.exact) return text;
  absl::StrAppendFormat(&text, "%s finds %.1f%% of the exact top %d, in %.2f of the time of exact search\n", asked.name,
                        100 * asked.recall_at_k, report.top_k, asked.us_per_query / fastest.us_per_query);
  return text;
}

Json ToJson(const RecallReport& report) {
  const DatasetInfo& d = report.data;
  Json j = RowJson(report, report.rows[report.primary]);
  j["codec"] = report.codec;
  if (!report.profile.empty()) {
    j["profile"] = report.profile;
    if (report.horizon) j["horizon"] = *report.horizon;
    j["coarse_bits"] = report.coarse_bits;
    j["total_bits"] = report.total_bits;
  }
  j["num_keys"] = d.num_keys();
  j["num_queries"] = d.num_positions * d.group * d.num_heads();
  j["backend"] = report.backend;
  j["simd_target"] = report.simd_target;
  j["read_bandwidth_gb_s"] = report.bandwidth_gb_s;
  j["top_k"] = report.top_k;
  j["scope"] = report.scope == Scope::kPerQHead ? "q_head" : "kv_head";
  j["cache"] = report.cold ? "cold" : "warm";
  j["threads"] = 1;
  j["exact_by"] = report.FastestExact().name;
  if (report.ExactFp16() != nullptr) j["exact_fp16_us_per_query"] = report.ExactFp16()->us_per_query;
  j["source"] = d.source;
  j["synthetic"] = d.synthetic;
  j["dtype"] = NameOf(d.dtype);
  if (!d.model.empty()) j["model"] = d.model;
  if (!d.text.empty()) j["text"] = d.text;
  j["layers"] = d.layers;
  j["num_kv_heads"] = d.num_kv_heads;
  j["num_q_heads"] = d.num_kv_heads * d.group;
  j["head_dim"] = d.head_dim;
  j["key_positions"] = {d.zone_begin, d.zone_end};
  if (!report.faiss.empty()) j["faiss"] = report.faiss;
  if (!report.peers.empty()) j["peers"] = report.peers;
  j["rows"] = Json::array();
  for (const Row& row : report.rows) j["rows"].push_back(RowJson(report, row));
  return j;
}

Plot MakePlot(const RecallReport& report) {
  Plot plot;
  plot.title = absl::StrFormat("Recall@%d against time a query", report.top_k);
  plot.subtitle = absl::StrCat(report.data.synthetic ? "synthetic " : "", report.data.source, ", ",
                               report.data.num_keys(), " keys, head_dim ", report.data.head_dim, ", one thread");
  plot.x_label = "microseconds a query (log)";
  plot.y_label = absl::StrCat("recall@", report.top_k);
  plot.log_x = true;
  std::map<std::string, size_t> place;
  for (const Row& row : report.rows) {
    const auto [it, fresh] = place.emplace(row.name, plot.series.size());
    if (fresh) plot.series.push_back({row.name, {}, true, true});
    plot.series[it->second].points.emplace_back(row.us_per_query, row.recall_at_k);
  }
  return plot;
}

}  // namespace seine::bench
