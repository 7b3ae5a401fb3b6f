// Bad settings, one a row: which field of the request the answer names, and in which words.
#include <google/protobuf/text_format.h>

#include <regex>

#include "service/fields/error.h"
#include "tests/service/contract/contract.h"

namespace seine::test {
namespace {

struct Row {
  std::string call;   // of Contract::AddAll
  std::string patch;  // merged into its right request, in protobuf's text format
  std::string field, what;
};

const std::vector<Row>& Rows() {
  static const auto* const kRows = new std::vector<Row>{
      {"CreateIndex keydiff", "spec { codec { centre_window: 65 } }", "spec.codec.centre_window",
       "65 is not a multiple of 64"},
      {"CreateIndex keydiff", "spec { codec { name: 'zip' } }", "spec.codec.name",
       "unknown codec; there are rsq and balanced"},
      {"CreateIndex keydiff", "spec { codec { centre_window: 128 } }", "spec.zones.update_buffer",
       "64 is not a multiple of codec.centre_window 128"},
      {"CreateIndex keydiff", "spec { retrieval { top_k: 0 } }", "spec.retrieval.top_k", "0 is not in [1, 65536]"},
      {"CreateIndex keydiff", "spec { retrieval { candidate_fraction: 2 } }", "spec.retrieval.candidate_fraction",
       "2 is not in [0, 1]"},
      {"CreateIndex keydiff", "spec { retrieval { softmax_scale: -1 } }", "spec.retrieval.softmax_scale",
       "-1 is not in [0, 10000]"},
      {"CreateIndex keydiff", "spec { geometry { head_dim: 65 } }", "spec.geometry.head_dim",
       "65 is none of 64, 80, 96, 128, 192, 256, 512"},
      {"CreateIndex keydiff", "spec { kv_store: KV_STORE_NONE }", "spec.kv_store",
       "eviction needs keys or keys_values"},
      {"CreateIndex keydiff", "spec { eviction { scorer { window: 5 } } }", "spec.eviction.scorer.window",
       "given, but keydiff has none; it is an option of windowed_manifoldkv"},
      {"CreateIndex keydiff", "spec { eviction { budget { pyramid_ratio: 0 } } }", "spec.eviction.budget.pyramid_ratio",
       "0 is no number of at least 1"},
      {"CreateIndex keydiff", "spec { eviction { keep { recent: -1 } } }", "spec.eviction.keep.recent",
       "-1 is negative"},
      {"CreateIndex keydiff", "spec { eviction { interval: 0 } }", "spec.eviction.interval",
       "0 is not in [1, 2147483647]"},
      {"CreateIndex keydiff", "spec { subspace { interval: 0 } }", "spec.subspace.interval", "0 is not in [1, 256]"},
      {"CreateIndex keydiff", "spec { subspace { key_rank: 65 } }", "spec.subspace.key_rank", "65 is not in [1, 64]"},
      {"CreateIndex keydiff", "spec { subspace { key_ranks: [24, 24, 24] } }", "spec.subspace.key_ranks",
       "3 ranks for 2 layers"},
      {"CreateIndex keydiff", "spec { subspace { absolute_rate: true max_gain: 1 } }", "spec.subspace.max_gain",
       "given, but absolute_rate is not bounded"},
      {"CreateIndex keydiff", "spec { subspace { full_rank: 0 full_rank_queries: 8 } }",
       "spec.subspace.full_rank_queries", "given, but full_rank keeps no token"},
      {"CreateIndex keydiff", "spec { subspace { energy: .5 } }", "spec.subspace.energy",
       "needs a profile, whose moments the ranks follow from"},
      {"CreateIndex keydiff", "spec { name: 'plain' }", "spec.name", "there is an index 'plain' already"},
      {"Retrieve", "selector { top_k: 65537 }", "selector.top_k", "65537 is not in [1, 65536]"},
      {"Retrieve", "selector { rescore_k: -1 }", "selector.rescore_k", "-1 is not in [0, 16777216]"},
      {"Retrieve", "selector { recall_target: .5 }", "selector.recall_target",
       "rsq does not predict its noise; give candidate_fraction"},
      {"Retrieve by mass", "selector { mass_p { cap: 65537 } }", "selector.mass_p.cap", "65537 is not in [1, 65536]"},
      {"Attend", "attention { softcap: -1 }", "attention.softcap", "-1 is not in [0, 10000]"},
      {"Attend", "attention { scale: -1 }", "attention.scale", "-1 is not in [0, 10000]"},
      {"Append", "item { layer: 9 }", "item.layer", "9 is not in [0, 2)"},
      {"Append", "item { handle { id: 'nobody' } }", "item.handle", "not found: 'nobody'"},
      {"Gather", "kv_head: 9", "kv_head", "9 is not in [0, 2)"},
      {"ForkSequence", "source { id: 'nobody' }", "source", "not found: 'nobody'"},
      {"ForkSequence", "new_id: 'work'", "new_id", "'work' is already in use"},
      {"GetSequence", "handle { id: 'nobody' }", "handle", "not found: 'nobody'"},
      {"MeasureProfile", "sequences { index: 'plain' id: 'nobody' }", "sequences[1]", "not found: 'nobody'"},
      {"CalibrateBasis", "key_rank: 65", "key_rank", "65 is not in [1, 64]"},
      {"CalibrateBasis", "value_rank: -1", "value_rank", "-1 is not in [1, 64]"},
      {"Reconstruct", "begin: 91", "begin", "91 is not in [0, end]"},
      {"Evict snapkv", "scorer { kernel: 4 }", "scorer.kernel", "4 is not odd"},
      {"Evict snapkv", "given { softmax_scale: -1 }", "given.softmax_scale", "-1 is not in [0, 10000]"},
      {"Evict snapkv", "scorer { query_window: 99 }", "given.queries",
       "snapkv needs those of the last 99 positions, 80 given"},
      {"Evict snapkv", "keep { recent: 100 }", "keep", "104 tokens of KV head 0 must stay, its budget is 100"},
      {"Score client", "handle { id: 'nobody' }", "handle", "not found: 'nobody'"},
      {"Diagnose snapkv", "window: 0", "window", "0 is not in [1, 16777216]"},
      {"Diagnose snapkv", "scorers { name: 'guess' }", "scorers[2].name", "unknown scorer"},
  };
  return *kRows;
}

class FieldErrors : public Contract {
 protected:
  // The wire's status of a right request, spoiled by the row's patch.
  v1::Status Refused(const Row& row) {
    for (const Rpc& rpc : rpcs_) {
      if (rpc.name != row.call) continue;
      const std::unique_ptr<Message> request(rpc.right->New());
      request->CopyFrom(*rpc.right);
      EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(row.patch, request.get())) << row.patch;
      EXPECT_TRUE(PathExists(request->GetDescriptor(), row.field)) << row.field;
      v1::Status wire;
      if (const absl::Status status = rpc.call(*request, rpc.answer.get()); !status.ok()) {
        ToProto(status, &wire);
      } else if (const v1::Status* const failure = FirstFailure(*rpc.answer)) {
        wire = *failure;
      }
      return wire;
    }
    ADD_FAILURE() << "no such call: " << row.call;
    return {};
  }
};

TEST_F(FieldErrors, NameTheRequestsFieldOnce) {
  AddAll();
  const std::regex second(R"([a-z0-9_.\[\]]+: .*)");
  for (const Row& row : Rows()) {
    const v1::Status status = Refused(row);
    EXPECT_EQ(DetailsOf(status).field, row.field) << row.patch << ": " << status.message();
    EXPECT_EQ(status.message().substr(0, row.field.size() + 2 + row.what.size()), row.field + ": " + row.what);
    const std::string what = status.message().substr(std::min(status.message().size(), row.field.size() + 2));
    EXPECT_FALSE(std::regex_match(what, second)) << status.message();
  }
}

}  // namespace
}  // namespace seine::test
