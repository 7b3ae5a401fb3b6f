// What engines are told of retained positions, as plain C++ values. Included by types.h.
#ifndef SEINE_CLIENT_EVICTION_TYPES_H_
#define SEINE_CLIENT_EVICTION_TYPES_H_

#include <cstdint>
#include <vector>

namespace seine::client {

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
