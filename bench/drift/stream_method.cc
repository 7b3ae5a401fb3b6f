// See stream_method.h.
#include "bench/drift/stream_method.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace seine::bench {

const std::vector<std::string>& UsualStreamMethods() {
  static const auto* const kUsual = new std::vector<std::string>{"seine",   "rsq",         "paper", "pq",  "pq_all",
                                                                 "pqcache", "pqcache_all", "ivf",   "lsh", "quest"};
  return *kUsual;
}

const std::vector<std::string>& StreamMethodNames() {
  static const auto* const kNames = [] {
    auto* names = new std::vector<std::string>(UsualStreamMethods());
    names->insert(names->end(), {"paper_no_rotation", "paper_no_tiers", "pq8", "pq8_all", "exact"});
    return names;
  }();
  return *kNames;
}

absl::StatusOr<std::unique_ptr<StreamMethod>> MakeStreamMethod(const std::string& name, const StreamOptions& options,
                                                               Backend* backend) {
  const std::vector<std::string>& names = StreamMethodNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--methods: \"", name, "\" is none of ", absl::StrJoin(names, ", ")));
  }
  if (name == "seine") return MakeSeineStream("balanced", options, backend);
  if (name == "rsq") return MakeSeineStream("rsq", options, backend);
  if (name == "paper") return MakePaperStream(/*rotation=*/true, /*tiers=*/true, options);
  if (name == "paper_no_rotation") return MakePaperStream(/*rotation=*/false, /*tiers=*/true, options);
  if (name == "paper_no_tiers") return MakePaperStream(/*rotation=*/true, /*tiers=*/false, options);
  if (name == "lsh") return MakeLshStream(options);
  if (name == "quest") return MakeQuestStream(options);
  if (name == "exact") return MakeExactStream(options);
  absl::string_view trained = name;
  const bool all = absl::ConsumeSuffix(&trained, "_all");
  return MakeFaissStream(std::string(trained), all, options);
}

}  // namespace seine::bench
