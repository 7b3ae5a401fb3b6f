// A right request of every unary RPC, for attacks to spoil.
#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/helpers.h"

namespace seine::soak {

std::vector<std::pair<std::string, std::string>> Requests(const v1::SequenceHandle& handle) {
  std::vector<std::pair<std::string, std::string>> all;
  const auto add = [&](const char* path, const auto& request) {
    all.emplace_back(absl::StrCat("/seine.v1.", path), request.SerializeAsString());
  };
  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("made");
  create.mutable_spec()->mutable_geometry()->mutable_rope()->set_config_json("{\"rope_theta\": 10000.0}");
  add("IndexService/CreateIndex", create);
  v1::GetIndexRequest get_index;
  get_index.set_name(kAttacked);
  add("IndexService/GetIndex", get_index);
  add("IndexService/ListIndexes", v1::ListIndexesRequest());
  v1::DeleteIndexRequest delete_index;
  delete_index.set_name("made");
  add("IndexService/DeleteIndex", delete_index);
  v1::CreateSequenceRequest create_sequence;
  create_sequence.set_index(kAttacked);
  create_sequence.set_id("another");
  add("SequenceService/CreateSequence", create_sequence);
  v1::GetSequenceRequest get;
  *get.mutable_handle() = handle;
  add("SequenceService/GetSequence", get);
  v1::ListSequencesRequest list;
  list.set_index(kAttacked);
  add("SequenceService/ListSequences", list);
  v1::ForkSequenceRequest fork;
  *fork.mutable_source() = handle;
  fork.set_new_id("forked");
  fork.set_position(100);
  add("SequenceService/ForkSequence", fork);
  v1::DeleteSequenceRequest del;
  *del.mutable_handle() = handle;
  del.mutable_handle()->set_id("forked");
  del.mutable_handle()->clear_generation();
  add("SequenceService/DeleteSequence", del);
  v1::TruncateSequenceRequest truncate;
  *truncate.mutable_handle() = handle;
  truncate.set_position(500);
  add("SequenceService/TruncateSequence", truncate);
  v1::AppendRequest append;
  *append.mutable_item() = Item(handle, 0, 500, 4, 1);
  add("RetrievalService/Append", append);
  v1::RetrieveRequest retrieve;
  *retrieve.add_items() = Query(handle, 0, 1);
  retrieve.mutable_selector()->set_top_k(8);
  add("RetrievalService/Retrieve", retrieve);
  v1::AttendRequest attend;
  *attend.add_items() = Query(handle, 1, 1);
  attend.mutable_attention()->set_with_positions(true);
  add("RetrievalService/Attend", attend);
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  gather.set_keys(true);
  const int32_t positions[] = {1, 2, 300};
  gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
  gather.mutable_positions()->add_shape(3);
  gather.mutable_positions()->set_raw(positions, sizeof(positions));
  add("RetrievalService/Gather", gather);
  v1::ScoreRequest score;
  *score.mutable_handle() = handle;
  score.mutable_scorer()->set_name("keydiff");
  add("EvictionService/Score", score);
  v1::EvictRequest evict;
  *evict.mutable_handle() = handle;
  evict.mutable_scorer()->set_name("manifoldkv");
  evict.mutable_budget()->set_tokens(400);
  evict.mutable_keep()->set_sinks(4);
  evict.set_dry_run(true);
  add("EvictionService/Evict", evict);
  v1::DiagnoseRequest diagnose;
  *diagnose.mutable_handle() = handle;
  diagnose.add_scorers()->set_name("keydiff");
  diagnose.mutable_budget()->set_tokens(100);
  add("EvictionService/Diagnose", diagnose);
  add("AdminService/GetServerInfo", v1::GetServerInfoRequest());
  v1::DescribeHeadRequest describe;
  *describe.mutable_handle() = handle;
  add("AdminService/DescribeHead", describe);
  v1::MeasureProfileRequest measure;
  *measure.add_sequences() = handle;
  add("AdminService/MeasureProfile", measure);
  v1::CompareExactRequest compare;
  compare.set_index(handle.index());
  compare.set_sequence(handle.id());
  compare.set_samples(2);
  add("AdminService/CompareExact", compare);
  v1::DescribeStepRequest step;
  *step.mutable_handle() = handle;
  add("AdminService/DescribeStep", step);
  add("AdminService/ListServers", v1::ListServersRequest());
  add("AdminService/GetMetrics", v1::GetMetricsRequest());
  return all;
}

}  // namespace seine::soak
