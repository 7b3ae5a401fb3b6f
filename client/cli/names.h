// Names of enumerated settings, on the command line and in JSON.
#ifndef SEINE_CLIENT_CLI_NAMES_H_
#define SEINE_CLIENT_CLI_NAMES_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/types.h"

namespace seine::cli {

template <typename Enum>
using NameTable = std::vector<std::pair<std::string, Enum>>;

inline const NameTable<client::DType> kDTypeNames = {
    {"fp32", client::DType::kFloat32}, {"fp16", client::DType::kFloat16}, {"bf16", client::DType::kBFloat16}};
inline const NameTable<client::Scope> kScopeNames = {{"kv_head", client::Scope::kPerKvHead},
                                                     {"q_head", client::Scope::kPerQHead}};
inline const NameTable<client::GqaReduce> kReduceNames = {{"softmax_sum", client::GqaReduce::kSoftmaxSum},
                                                          {"max", client::GqaReduce::kMax},
                                                          {"mean", client::GqaReduce::kMean}};
inline const NameTable<client::Coarse> kCoarseNames = {{"sign_ip", client::Coarse::kSignIp},
                                                       {"collision", client::Coarse::kCollision}};
inline const NameTable<client::Centre> kCentreNames = {
    {"none", client::Centre::kNone}, {"global", client::Centre::kGlobal}, {"window", client::Centre::kWindow}};
inline const NameTable<client::RopeStyle> kRopeStyleNames = {{"half_split", client::RopeStyle::kHalfSplit},
                                                             {"interleaved", client::RopeStyle::kInterleaved}};
inline const NameTable<client::KvStore> kKvStoreNames = {
    {"none", client::KvStore::kNone}, {"keys", client::KvStore::kKeys}, {"keys_values", client::KvStore::kKeysValues}};
inline const NameTable<client::KeyFrame> kKeyFrameNames = {{"post_rope", client::KeyFrame::kPostRope},
                                                           {"pre_rope", client::KeyFrame::kPreRope}};
inline const NameTable<client::Anchor> kAnchorNames = {{"unit_mean", client::Anchor::kUnitMean},
                                                       {"mean", client::Anchor::kMean},
                                                       {"median", client::Anchor::kMedian},
                                                       {"pairwise", client::Anchor::kPairwise}};
inline const NameTable<client::Similarity> kSimilarityNames = {{"cosine", client::Similarity::kCosine},
                                                               {"dot", client::Similarity::kDot},
                                                               {"euclid", client::Similarity::kEuclid}};
inline const NameTable<client::Metric> kMetricNames = {
    {"l2", client::Metric::kL2}, {"l1", client::Metric::kL1}, {"linf", client::Metric::kLinf}};
inline const NameTable<client::HeadBudget> kHeadBudgetNames = {{"uniform", client::HeadBudget::kUniform},
                                                               {"adaptive", client::HeadBudget::kAdaptive},
                                                               {"pyramid", client::HeadBudget::kPyramid}};
inline const NameTable<client::Path> kPathNames = {
    {"index", client::Path::kIndex}, {"dense", client::Path::kDense}, {"exact", client::Path::kExact}};

template <typename Enum>
std::string NameOf(const NameTable<Enum>& table, Enum value) {
  for (const auto& [name, candidate] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

// Takes a name of `table` on the command line; another value is an error that lists the names.
template <typename Enum>
CLI::Validator Names(const NameTable<Enum>& table) {
  CLI::Validator names(
      [&table](std::string& input) -> std::string {
        std::string known;
        for (const auto& [name, value] : table) {
          if (name == input) {
            input = std::to_string(static_cast<int>(value));
            return "";
          }
          known += (known.empty() ? "" : ", ") + name;
        }
        return "must be one of " + known + ", not " + input;
      },
      "");
  return names;
}

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_NAMES_H_
