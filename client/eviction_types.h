// Settings of eviction as plain C++ values. Included by types.h.
#ifndef SEINE_CLIENT_EVICTION_TYPES_H_
#define SEINE_CLIENT_EVICTION_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "profile/scorer_list.h"

namespace seine::client {

// kDefault, and absent optionals, take the server's default.
enum class Anchor : uint8_t { kDefault = 0, kUnitMean = 1, kMean = 2, kMedian = 3, kPairwise = 4 };
enum class Similarity : uint8_t { kDefault = 0, kCosine = 1, kDot = 2, kEuclid = 3 };
enum class Metric : uint8_t { kDefault = 0, kL2 = 1, kL1 = 2, kLinf = 3 };
enum class ValueWeight : uint8_t { kDefault = 0, kNone = 1, kNorm = 2, kProjected = 3 };
enum class HeadBudget : uint8_t { kDefault = 0, kUniform = 1, kAdaptive = 2, kPyramid = 3 };

template <typename Type>
using ScorerField = std::conditional_t<std::is_enum_v<Type>, Type, std::optional<Type>>;

// How much a token is worth keeping. profile/scorer_list.h lists the names ("" is keydiff), and which scorers have
// which of the options that follow as fields: `anchor`, `similarity`, `metric` and `value_weight` of the enums above,
// the others optional numbers (`window`, `lambda`, `sink`, ...). An option that the named scorer has not is refused.
struct Scorer {
  std::string name;
#define SEINE_SCORER_CLIENT_FIELD(Type, name, ...) ScorerField<Type> name = {};
  SEINE_FOR_EACH_SCORER_OPTION(SEINE_SCORER_CLIENT_FIELD)
#undef SEINE_SCORER_CLIENT_FIELD
};

// Tokens a head, or the share that goes (0.75 keeps a quarter): one of them.
struct Budget {
  std::optional<int64_t> tokens = {};
  std::optional<double> ratio = {};
  HeadBudget heads = HeadBudget::kDefault;
  std::optional<double> safeguard = {};  // adaptive: the share of its budget that a head is sure of
  std::optional<double> beta = {};       // pyramid: the mean budget over the last layer's
};

// What stays whatever its score, within the budget.
struct Keep {
  int64_t sinks = 0, recent = 0;        // first and last positions
  double recent_share = 0;              // of the budget, for the last positions
  std::vector<int32_t> positions = {};  // ascending; only with a call
};

// Eviction that an index does by itself: never more than budget + interval tokens a head are held.
struct Eviction {
  Scorer scorer;
  Budget budget;  // in tokens
  Keep keep;
  std::optional<int64_t> interval;
  std::string profile;  // qfilters, expected_attention; the codec's if empty
  // Positions whose queries each layer of a sequence keeps for scorers that look at them: those that were asked, and
  // those that came with AppendItem::queries. Absent: what the scorer needs.
  std::optional<int> keep_queries = {};
  std::optional<int64_t> horizon = {};  // qfilters from a profile: positions that queries are expected at
  // Qfilters in place of a profile: [num_layers, num_kv_heads, head_dim] row-major, high <k, filter> is kept; or the
  // name of such a file of the server's, NAME.filters.safetensors.
  std::vector<float> filters = {};
  std::string filters_file = {};
};

// What an append or eviction reports of the positions that the layer's KV heads retain: nothing, what it took out of
// them, or what they are now.
enum class RetainedReport : uint8_t { kNone = 0, kDropped = 1, kKept = 2 };

// For an engine that holds keys and values itself: what each KV head of a layer retains, so that it can follow without
// asking. RetainedSets (client/retained_sets.h) follows by it; seine/v1/eviction.proto has the whole contract.
struct Retained {
  RetainedReport report = RetainedReport::kNone;  // that was asked for
  int64_t evictions_before = 0, evictions = 0;    // of the layer, since its first token: up to the call, and with it
  int64_t num_tokens = 0;                         // the layer's length
  std::vector<int32_t> counts = {};  // [num_kv_heads] tokens retained. Empty: there was no memory to report the rest
  // Under kDropped: [num_kv_heads] ascending, or empty where nothing was dropped.
  std::vector<std::vector<int32_t>> dropped = {};
  std::vector<std::vector<int32_t>> kept = {};  // under kKept: [num_kv_heads] ascending
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_EVICTION_TYPES_H_
