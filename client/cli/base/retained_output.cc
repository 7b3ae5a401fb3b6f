#include "client/cli/base/retained_output.h"

#include "absl/strings/str_cat.h"

namespace seine::cli {

Json RetainedJson(const std::vector<client::LayerRetained>& reports) {
  if (reports.empty()) return nullptr;
  const client::Retained& report = reports[0].retained;
  Json json = {{"evictions_before", report.evictions_before},
               {"evictions", report.evictions},
               {"num_tokens", report.num_tokens},
               {"counts", report.counts}};
  if (report.report == client::RetainedReport::kDropped) json["dropped"] = report.dropped;
  if (report.report == client::RetainedReport::kKept) json["kept"] = report.kept;
  return json;
}

std::string RetainedText(const std::vector<client::LayerRetained>& reports) {
  if (reports.empty()) return "";
  const client::Retained& report = reports[0].retained;
  std::string text = absl::StrCat("evictions: ", report.evictions - report.evictions_before,
                                  "; of the layer so far: ", report.evictions, "\n");
  const bool kept = report.report == client::RetainedReport::kKept;
  const auto& heads = kept ? report.kept : report.dropped;
  for (size_t h = 0; h < report.counts.size(); ++h) {
    absl::StrAppend(&text, "KV head ", h, " retains ", report.counts[h]);
    if (h < heads.size()) absl::StrAppend(&text, kept ? ": " : ", dropped ", FormatRuns(heads[h]));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace seine::cli
