// See equal_report.h.
#include "bench/tables/equal_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/report/table.h"

namespace seine::bench {
namespace {

using EqualJson = nlohmann::ordered_json;

EqualJson OrNone(double v) { return v > 0 ? EqualJson(v) : EqualJson(nullptr); }

std::string ShareOf(const EqualReport& report, const EqualRow& row) {
  if (row.asked == 0) return "own";
  return absl::StrFormat("%.3g%%",
                         100.0 * static_cast<double>(row.asked) / static_cast<double>(report.data.num_keys()));
}

std::string CandidatesText(const EqualRow& row) {
  if (row.fewest == row.most) return absl::StrCat(row.most);
  return absl::StrFormat("%.0f (%d-%d)", row.candidates, row.fewest, row.most);
}

}  // namespace

std::string RenderText(const EqualReport& report) {
  const DatasetInfo& d = report.data;
  std::string text = absl::StrCat(d.synthetic ? "synthetic: " : "trace: ", d.source,
                                  d.synthetic ? " (synthetic, no model's keys)" : "", "\n");
  if (!d.model.empty()) absl::StrAppend(&text, "  model ", d.model, "\n  text ", d.text, "\n");
  absl::StrAppendFormat(&text,
                        "%s %s, %d KV heads x %d query heads, head_dim %d, %s; %d keys a head held and searched; "
                        "profile: %s\n",
                        d.layers.size() == 1 ? "layer" : "layers", absl::StrJoin(d.layers, ", "), d.num_kv_heads,
                        d.group, d.head_dim, NameOf(d.dtype), d.num_keys(), report.profile);
  if (!report.faiss.empty()) absl::StrAppend(&text, report.faiss, "\n");
  std::vector<std::vector<std::string>> table = {{"method", "share", "candidates",
                                                  absl::StrCat("recall@", report.top_k), "worst head", "all exact",
                                                  "mass", "attended", "code B/key", "KB read/query"}};
  for (const EqualRow& row : report.rows) {
    table.push_back({row.name, ShareOf(report, row), CandidatesText(row), absl::StrFormat("%.4f", row.recall_at_k),
                     absl::StrFormat("%.3f", row.recall_at_k_worst_head), absl::StrFormat("%.4f", row.recall_exact),
                     absl::StrFormat("%.4f", row.attention_mass), absl::StrFormat("%.0f", row.tokens_attended),
                     absl::StrFormat("%.1f", row.bytes_per_key), absl::StrFormat("%.1f", row.bytes_read / 1e3)});
  }
  absl::StrAppend(&text, "\n", RenderTable(table));
  return absl::StrCat(
      text,
      "\nrecall: of the answer as each method refines it: ours scores the rerank's best exactly, the paper's "
      "pipeline none, FAISS and Quest all\nall exact: were every candidate scored exactly; of fewer than ",
      report.top_k,
      " candidates no method finds more than their share\nattended: keys of the answer. KB read: codes and "
      "keys read to choose them, without tables of the query\n");
}

EqualJson ToJson(const EqualReport& report) {
  const DatasetInfo& d = report.data;
  EqualJson j;
  j["source"] = d.source;
  j["synthetic"] = d.synthetic;
  if (!d.model.empty()) j["model"] = d.model;
  if (!d.text.empty()) j["text"] = d.text;
  j["layers"] = d.layers;
  j["num_kv_heads"] = d.num_kv_heads;
  j["num_q_heads"] = d.num_kv_heads * d.group;
  j["head_dim"] = d.head_dim;
  j["dtype"] = NameOf(d.dtype);
  j["num_keys"] = d.num_keys();
  j["key_positions"] = {d.zone_begin, d.zone_end};
  j["top_k"] = report.top_k;
  j["profile"] = report.profile;
  if (!report.faiss.empty()) j["faiss"] = report.faiss;
  j["left_out"] = report.left_out;
  j["rows"] = EqualJson::array();
  for (const EqualRow& row : report.rows) {
    EqualJson& r = j["rows"].emplace_back();
    r["method"] = row.name;
    r["share"] = ShareOf(report, row);
    r["candidates_asked"] = row.asked > 0 ? EqualJson(row.asked) : EqualJson(nullptr);
    r["candidates"] = row.candidates;
    r["candidates_fewest"] = row.fewest;
    r["candidates_most"] = row.most;
    r["beta"] = OrNone(row.beta);
    r["rho"] = OrNone(row.rho);
    r["recall_at_k"] = row.recall_at_k;
    r["recall_at_k_worst_head"] = row.recall_at_k_worst_head;
    r["recall_exact"] = row.recall_exact;
    r["attention_mass"] = row.attention_mass;
    r["tokens_held"] = d.num_keys();
    r["tokens_attended"] = row.tokens_attended;
    r["head_dim"] = d.head_dim;
    r["bytes_per_key"] = row.bytes_per_key;
    r["bytes_read"] = row.bytes_read;
    r["answers"] = row.num_queries;
  }
  return j;
}

}  // namespace seine::bench
