// Every call's right request, what it answers to it, and which integers it takes in place of those.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "service/channel_offers.h"
#include "tests/service/contract/contract.h"

namespace seine::test {
namespace {

std::function<bool(Integer)> Within(Integer low, Integer high) {
  return [=](Integer value) { return value >= low && value <= high; };
}

void ExpectCounts(const v1::RetrieveAnswer& answer, int sets, int low, int high) {
  EXPECT_EQ(answer.num_tokens(), kHeld);
  const std::vector<int32_t> counts = Ints(answer.counts());
  ASSERT_EQ(counts.size(), static_cast<size_t>(sets));
  for (const int32_t count : counts) EXPECT_TRUE(count >= low && count <= high) << count;
}

// The zone of an item, which dense_from may cut to nothing: the values that it takes are 0, 1 and beyond every token.
int64_t ZoneOf(const v1::RetrieveItem& item) { return item.has_dense_from() && item.dense_from() < 2 ? 0 : kZone; }

// What a budget keeps of each head; the sinks and the last tokens are among them.
void ExpectKept(const v1::EvictRequest& asked, const v1::EvictResponse& answer) {
  const int64_t budget = asked.budget().has_tokens() ? asked.budget().tokens()
                                                     : static_cast<int64_t>(kHeld * (1 - asked.budget().ratio()));
  const bool all = asked.scorer().query_window() >= kHeld;
  const int64_t kept = all ? kHeld : std::min<int64_t>(budget, kHeld);
  for (const auto& head : answer.kept()) {
    const std::vector<int32_t> positions = Ints(head);
    ASSERT_EQ(positions.size(), static_cast<size_t>(kept));
    for (int64_t i = 0; i < std::min<int64_t>(kHeld, asked.keep().sinks()); ++i) EXPECT_EQ(positions[i], i);
    for (int64_t i = 1; i <= std::min<int64_t>(kHeld, asked.keep().recent()); ++i) {
      EXPECT_EQ(positions[kept - i], kHeld - i);
    }
  }
  EXPECT_EQ(answer.tokens_evicted(), kKvHeads * (kHeld - kept));
}

void ExpectSame(const v1::IndexSpec& asked, const v1::IndexSpec& made) {
  for (const FieldPlace& place : ScalarsOf(asked)) {
    if (IsInteger(place.field()) && IsGiven(place, asked)) {
      EXPECT_EQ(IntegerAt(place, asked), IntegerAt(place, made)) << place.path();
    }
  }
}

}  // namespace

void Contract::AddAll() {
  {
    v1::AppendRequest request;
    *request.mutable_item() = Tokens(Work("own"), 0, kHeld, 3);
    *request.mutable_item()->mutable_queries() = Singles({2, kQHeads, kDim});
    request.mutable_item()->set_report(v1::RETAINED_REPORT_DROPPED);
    Add<v1::AppendRequest, v1::AppendResponse>("Append", &Append, request, [](const auto&, const auto& answer) {
      EXPECT_EQ(answer.num_tokens(), kHeld + 3);
      EXPECT_EQ(answer.retained().num_tokens(), kHeld + 3);
    }).changes = true;
    v1::AppendStreamRequest piece;
    *piece.mutable_item() = request.item();
    piece.mutable_item()->set_report(v1::RETAINED_REPORT_KEPT);
    Add<v1::AppendStreamRequest, v1::AppendStreamResponse>(
        "AppendPiece", &AppendPiece, piece, [](const auto&, const auto& answer) { EXPECT_EQ(answer.tokens(), 3); })
        .changes = true;
  }
  {
    v1::RetrieveRequest request;
    *request.add_items() = Query(Work("plain"), 0);
    request.mutable_selector()->set_top_k(kTopK);
    Rpc& plain = Add<v1::RetrieveRequest, v1::RetrieveResponse>(
        "Retrieve", &Retrieve, request, [](const auto& asked, const auto& answer) {
          const int count = std::min<int>(asked.selector().top_k(), ZoneOf(asked.items(0)));
          ExpectCounts(answer.answers(0), kKvHeads, count, count);
        });
    plain.legal["items.dense_from"] = Within(0, kInt64Max);
    plain.legal["selector.top_k"] = Within(1, kMostTopK);
    plain.legal["selector.rescore_k"] = Within(0, kMostZone);
    request.mutable_selector()->mutable_mass_p()->set_p(.5f);
    request.mutable_selector()->mutable_mass_p()->set_floor(2);
    request.mutable_selector()->mutable_mass_p()->set_cap(16);
    Rpc& mass = Add<v1::RetrieveRequest, v1::RetrieveResponse>(
        "Retrieve by mass", &Retrieve, request, [](const auto& asked, const auto& answer) {
          const auto& m = asked.selector().mass_p();
          const int zone = ZoneOf(asked.items(0));
          ExpectCounts(answer.answers(0), kKvHeads, std::min(zone, std::max(1, m.floor())), std::min(m.cap(), zone));
        });
    mass.legal["items.dense_from"] = Within(0, kInt64Max);
    mass.legal["selector.mass_p.floor"] = Within(0, 16);
    mass.legal["selector.mass_p.cap"] = Within(2, kMostTopK);
    mass.legal["selector.rescore_k"] = Within(0, kMostZone);
  }
  {
    v1::AttendRequest request;
    *request.add_items() = Query(Work("plain"), 0);
    request.mutable_selector()->set_top_k(kTopK);
    request.mutable_attention()->set_with_positions(true);
    Rpc& attend = Add<v1::AttendRequest, v1::AttendResponse>(
        "Attend", &Attend, request, [](const auto& asked, const auto& answer) {
          const int zone = ZoneOf(asked.items(0)), count = std::min(asked.selector().top_k(), zone);
          ExpectCounts(answer.answers(0).selected(), kQHeads, count, count);
          EXPECT_EQ(answer.answers(0).attended_tokens(), kQHeads * (kHeld - zone + count));
        });
    attend.legal["selector.top_k"] = Within(1, kMostTopK);
    attend.legal["selector.rescore_k"] = Within(0, kMostZone);
    attend.legal["items.dense_from"] = Within(0, kInt64Max);
    v1::Tensor* positions = request.mutable_items(0)->mutable_positions();
    std::vector<int32_t> pairs;
    for (int h = 0; h < kQHeads; ++h) pairs.insert(pairs.end(), {20, 30 + h});
    *positions = Positions(pairs);
    positions->set_shape(0, kQHeads);
    positions->add_shape(2);
    request.mutable_attention()->clear_with_positions();
    Rpc& given = Add<v1::AttendRequest, v1::AttendResponse>(
        "Attend at positions", &Attend, request, [](const auto&, const auto& answer) {
          EXPECT_EQ(answer.answers(0).attended_tokens(), kQHeads * (kHeld - kZone + 2));
        });
    given.legal["selector.top_k"] = Within(1, kMostTopK);
    given.legal["selector.rescore_k"] = Within(0, kMostZone);
    given.legal["items.dense_from"] = Within(2, kInt64Max);  // below, the zone has no such position
  }
  {
    v1::GatherRequest request;
    *request.mutable_handle() = Work("plain");
    *request.mutable_positions() = Positions({3, 199});
    request.set_keys(true);
    Add<v1::GatherRequest, v1::GatherResponse>("Gather", &Gather, request, [](const auto& asked, const auto& answer) {
      const std::string held = Tokens({}, 0, 0, kHeld).keys().raw();
      const size_t row = kDim * 2;
      EXPECT_EQ(answer.keys().raw(), held.substr((3 * kKvHeads + asked.kv_head()) * row, row) +
                                         held.substr((199 * kKvHeads + asked.kv_head()) * row, row));
    });
  }
  {
    v1::DecodeRequest request;
    request.set_step(7);
    *request.add_appends() = Tokens(Work("plain"), 0, kHeld, 3);
    request.mutable_appends(0)->set_report(v1::RETAINED_REPORT_KEPT);
    *request.add_items() = Query(Work("plain"), 1);
    request.mutable_selector()->set_top_k(kTopK);
    const auto decode = [](Core& core, const v1::DecodeRequest& asked, v1::DecodeResponse* answer) {
      DecodeSession(core).Step(asked, answer, [] {});
      return absl::OkStatus();
    };
    Rpc& rpc = Add<v1::DecodeRequest, v1::DecodeResponse>(
        "Decode", +decode, request, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.step(), asked.step());
          const int count = std::min<int>(asked.selector().top_k(), kZone);
          if (asked.items(0).layer() != asked.appends(0).layer() && ZoneOf(asked.items(0)) > 0)
            ExpectCounts(answer.answers(0), kKvHeads, count, count);
        });
    rpc.legal["items.dense_from"] = Within(0, kInt64Max);
    rpc.legal["step"] = [](Integer) { return true; };
    rpc.legal["selector.top_k"] = Within(1, kMostTopK);
    rpc.legal["selector.rescore_k"] = Within(0, kMostZone);
    rpc.changes = true;
  }
  {
    v1::ForkSequenceRequest request;
    *request.mutable_source() = Work("plain");
    request.set_new_id("copy");
    Rpc& fork = Add<v1::ForkSequenceRequest, v1::ForkSequenceResponse>(
        "ForkSequence", &ForkSequence, request, [this](const auto& asked, const auto& answer) {
          v1::GetSequenceRequest get;
          v1::GetSequenceResponse got;
          *get.mutable_handle() = answer.handle();
          ASSERT_TRUE(GetSequence(*core_, get, &got).ok());
          EXPECT_EQ(got.sequence().layer_tokens(0), asked.has_position() ? asked.position() : kHeld);
        });
    fork.legal["position"] = Within(0, kHeld);
    fork.changes = true;
  }
  {
    v1::TruncateSequenceRequest request;
    *request.mutable_handle() = Work("plain");
    request.set_position(100);
    Rpc& cut = Add<v1::TruncateSequenceRequest, v1::TruncateSequenceResponse>(
        "TruncateSequence", &TruncateSequence, request, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.sequence().layer_tokens(1), asked.position());
          EXPECT_EQ(answer.sequence().handle().id(), "work");
        });
    cut.legal["position"] = Within(0, kHeld);
    cut.changes = true;
  }
  {
    v1::SnapshotRequest write;
    *write.mutable_handle() = Work("plain");
    write.set_file("work");
    write.set_scope(v1::SNAPSHOT_SCOPE_SEQUENCE);
    Rpc& written = Add<v1::SnapshotRequest, v1::SnapshotResponse>(
        "Snapshot", &Snapshot, write, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.sequences_size(), asked.scope() == v1::SNAPSHOT_SCOPE_SEQUENCE ? 1 : 2);
          EXPECT_GT(answer.bytes(), 2 * kHeld * kLayers * kKvHeads * kDim * 2);
        });
    written.legal["keep_seconds"] = Within(0, 3600);
    v1::RestoreRequest read;
    read.set_index("plain");
    read.set_file("pristine");  // SetUp has written it
    read.set_id("copy");
    Rpc& restored = Add<v1::RestoreRequest, v1::RestoreResponse>(
        "Restore", &Restore, read, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.sequences(0).handle().id(), asked.id());
          EXPECT_EQ(answer.sequences(0).layer_tokens(0), kHeld);
        });
    restored.legal["generation"] = [](Integer) { return true; };
    restored.legal["hold_seconds"] = Within(0, 3600);
    restored.changes = true;
    v1::ReleaseBaseRequest release;
    release.set_index("plain");
    release.set_base("none");
    Add<v1::ReleaseBaseRequest, v1::ReleaseBaseResponse>(
        "ReleaseBase", &ReleaseBase, release, [](const auto&, const auto& answer) { EXPECT_FALSE(answer.released()); });
  }
  {
    v1::SetFamilyStateRequest freeze;
    freeze.set_index("plain");
    freeze.set_family("work");
    freeze.set_state(v1::FAMILY_STATE_FROZEN);
    freeze.set_seconds(600);
    Rpc& frozen = Add<v1::SetFamilyStateRequest, v1::SetFamilyStateResponse>("SetFamilyState", &SetFamilyState, freeze,
                                                                             [](const auto&, const auto& answer) {
                                                                               EXPECT_FALSE(answer.freeze().empty());
                                                                               EXPECT_EQ(answer.sequences(), 1);
                                                                             });
    frozen.legal["seconds"] = Within(0, 86'400);
    frozen.legal["generation"] = [](Integer) { return true; };
    frozen.changes = true;
    v1::ListFamilyStatesRequest states;
    states.set_index("plain");
    states.set_family("work");
    Add<v1::ListFamilyStatesRequest, v1::ListFamilyStatesResponse>(
        "ListFamilyStates", &ListFamilyStates, states,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.families_size(), 0); });
    Add<v1::ListServersRequest, v1::ListServersResponse>(
        "ListServers", &ListServers, v1::ListServersRequest(),
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.servers_size(), 1); })
        .legal["page_size"] = Within(0, kInt32Max);
    Add<v1::SetDrainingRequest, v1::SetDrainingResponse>(
        "SetDraining", &SetDraining, v1::SetDrainingRequest(),
        [](const auto&, const auto& answer) { EXPECT_FALSE(answer.was_draining()); })
        .changes = true;
  }
  {
    v1::GetSequenceRequest request;
    *request.mutable_handle() = Work("plain");
    Add<v1::GetSequenceRequest, v1::GetSequenceResponse>("GetSequence", &GetSequence, request, {});
    v1::DeleteSequenceRequest remove;
    *remove.mutable_handle() = Work("plain");
    Add<v1::DeleteSequenceRequest, v1::DeleteSequenceResponse>("DeleteSequence", &DeleteSequence, remove, {}).changes =
        true;
    v1::ListSequencesRequest list;
    list.set_index("plain");
    Rpc& listed = Add<v1::ListSequencesRequest, v1::ListSequencesResponse>(
        "ListSequences", &ListSequences, list, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.sequences_size(), asked.page_size() == 1 ? 1 : 2);
          EXPECT_EQ(answer.next_page_token().empty(), asked.page_size() != 1);
        });
    listed.legal["page_size"] = Within(0, kInt32Max);
    v1::DescribeHeadRequest describe;
    *describe.mutable_handle() = Work("plain");
    Add<v1::DescribeHeadRequest, v1::DescribeHeadResponse>(
        "DescribeHead", &DescribeHead, describe,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.num_tokens(), kHeld); });
    v1::MeasureProfileRequest measure;
    *measure.add_sequences() = Pristine("plain");
    Rpc& measured = Add<v1::MeasureProfileRequest, v1::MeasureProfileResponse>(
        "MeasureProfile", &MeasureProfile, measure,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.query_tokens(), 1); });
    measured.legal["layer"] = Within(0, 0);                 // that was asked
    measured.legal["sequences.generation"] = Within(0, 1);  // the first of its index
    v1::DescribeStepRequest step;
    *step.mutable_handle() = Pristine("plain");
    Rpc& described = Add<v1::DescribeStepRequest, v1::DescribeStepResponse>(
        "DescribeStep", &DescribeStep, step, [](const auto&, const auto& answer) {
          EXPECT_EQ(answer.num_tokens(), kHeld);
          ASSERT_EQ(answer.sets_size(), kKvHeads);
          for (const v1::StepSet& set : answer.sets()) {
            EXPECT_NEAR(set.sink() + set.local() + set.found() + set.tail(), 1, 1e-6);
          }
        });
    described.legal["layer"] = Within(0, 0);              // that was asked
    described.legal["handle.generation"] = Within(0, 1);  // the first of its index
    v1::CompareExactRequest compare;
    compare.set_index("plain");
    compare.set_sequence(Pristine("plain").id());
    compare.add_layers(0);
    compare.set_samples(2);
    Rpc& compared = Add<v1::CompareExactRequest, v1::CompareExactResponse>(
        "CompareExact", &CompareExact, compare,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.compared() + answer.dropped(), 1); });
    compared.legal["layers"] = Within(0, 0);
    compared.legal["samples"] = Within(0, 10'000);
  }
  {
    v1::GetBasisRequest get;
    *get.mutable_handle() = Work("low");
    v1::GetBasisResponse bases;
    ASSERT_TRUE(GetBasis(*core_, get, &bases).ok());
    Add<v1::GetBasisRequest, v1::GetBasisResponse>("GetBasis", &GetBasis, get, [](const auto&, const auto& answer) {
      EXPECT_EQ(answer.bases().values().shape(2), 33);
    });
    v1::LoadBasisRequest load;
    *load.mutable_handle() = Work("low");
    *load.mutable_bases() = bases.bases();
    Add<v1::LoadBasisRequest, v1::LoadBasisResponse>("LoadBasis", &LoadBasis, load, {}).changes = true;
    v1::CalibrateBasisRequest calibrate;
    calibrate.set_index("low");
    calibrate.set_profile("made");
    calibrate.set_key_rank(16);
    calibrate.set_value_rank(16);
    calibrate.set_energy(.5);
    Rpc& calibrated = Add<v1::CalibrateBasisRequest, v1::CalibrateBasisResponse>(
        "CalibrateBasis", &CalibrateBasis, calibrate, [](const auto& asked, const auto& answer) {
          const v1::LayerBases& made = answer.bases();
          EXPECT_TRUE(asked.key_rank() == 0 || made.keys().shape(2) == asked.key_rank());
          EXPECT_TRUE(asked.value_rank() == 0 || made.values().shape(2) == asked.value_rank());
        });
    calibrated.legal["key_rank"] = calibrated.legal["value_rank"] = Within(0, kDim);
    calibrated.legal["carried_to"] = Within(0, kInt64Max);
    v1::ReconstructRequest range;
    *range.mutable_handle() = Work("low");
    range.set_begin(0);
    range.set_end(90);
    Rpc& rebuilt = Add<v1::ReconstructRequest, v1::ReconstructResponse>(
        "Reconstruct", &Reconstruct, range, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.positions().shape(0), asked.end() - asked.begin());
        });
    rebuilt.legal["begin"] = Within(0, 90);
    rebuilt.legal["end"] = Within(0, kHeld);
  }
  {
    v1::OpenChannelRequest request;
    core_->channels.Open("/run/seine.sock.channel");
    Rpc& channel = Add<v1::OpenChannelRequest, v1::OpenChannelResponse>(
        "OpenChannel", &OpenChannel, request, [](const auto& asked, const auto& answer) {
          EXPECT_EQ(answer.ring_bytes(), asked.ring_bytes() == 0 ? 1 << 20 : asked.ring_bytes());
          EXPECT_EQ(answer.token().size(), 16u);
        });
    channel.legal["ring_bytes"] = Within(0, 0);  // of the values tried
  }
  AddEvictions();
  AddIndexes();
}

void Contract::AddEvictions() {
  for (const char* scorer :
       {"keydiff", "windowed_manifoldkv", "streaming_llm", "snapkv", "expected_attention", "hybrid", "client"}) {
    v1::EvictRequest evict;
    *evict.mutable_handle() = Work("plain");
    evict.mutable_scorer()->set_name(scorer);
    evict.mutable_budget()->set_tokens(100);
    evict.mutable_keep()->set_sinks(2);
    evict.mutable_keep()->set_recent(3);
    *evict.mutable_keep()->mutable_positions() = Positions({50, 60});
    *evict.mutable_given()->mutable_queries() = Singles({80, kQHeads, kDim});
    *evict.mutable_given()->mutable_filters() = Singles({kKvHeads, kDim});
    for (int h = 0; h < kKvHeads; ++h) *evict.mutable_given()->add_scores() = Singles({kHeld});
    v1::ScoreRequest score;
    *score.mutable_handle() = evict.handle();
    *score.mutable_scorer() = evict.scorer();
    *score.mutable_given() = evict.given();
    v1::DiagnoseRequest diagnose;
    *diagnose.mutable_handle() = evict.handle();
    *diagnose.add_scorers() = evict.scorer();
    *diagnose.add_scorers() = evict.scorer();
    *diagnose.mutable_given() = evict.given();
    diagnose.mutable_budget()->set_tokens(100);
    evict.set_report(v1::RETAINED_REPORT_DROPPED);
    Add<v1::EvictRequest, v1::EvictResponse>(absl::StrCat("Evict ", scorer), &Evict, evict, ExpectKept).changes = true;
    Add<v1::ScoreRequest, v1::ScoreResponse>(
        absl::StrCat("Score ", scorer), &Score, score,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.heads(1).scores().shape(0), kHeld); });
    Add<v1::DiagnoseRequest, v1::DiagnoseResponse>(
        absl::StrCat("Diagnose ", scorer), &Diagnose, diagnose,
        [](const auto&, const auto& answer) { EXPECT_EQ(answer.heads(1).tokens(), kHeld); });
    for (size_t back = 1; back <= 3; ++back) {
      auto& legal = rpcs_[rpcs_.size() - back].legal;
      for (const std::string prefix : {"scorer.", "scorers."}) {
        const std::string name = scorer;
        if (name == "windowed_manifoldkv") legal[prefix + "window"] = Within(1, kMostZone);
        if (name == "streaming_llm") legal[prefix + "sink"] = Within(0, kMostZone);
        // Some query must come after the sinks, unless nothing does.
        if (name == "expected_attention") legal[prefix + "sink"] = Within(0, 199);
        if (name == "expected_attention") legal[prefix + "future"] = Within(1, kMostZone);
        if (name == "snapkv") legal[prefix + "query_window"] = Within(1, 80);  // queries given
        if (name == "snapkv") legal[prefix + "kernel"] = Within(1, 1);         // of the values tried
      }
      legal["window"] = Within(1, kMostZone);
      legal["budget.tokens"] = back == 3 ? Within(7, kInt64Max) : Within(1, kInt64Max);
      legal["keep.sinks"] = legal["keep.recent"] = Within(0, 90);
    }
  }
}

void Contract::AddIndexes() {
  for (const char* scorer : {"keydiff", "snapkv", "expected_attention", "hybrid"}) {
    v1::CreateIndexRequest request;
    v1::IndexSpec& spec = *request.mutable_spec();
    spec = Spec("made", v1::KV_STORE_KEYS_VALUES);
    spec.mutable_codec()->set_seed(5);
    for (int i = 0; i < kDim / 2; ++i) spec.mutable_geometry()->mutable_rope()->add_inv_freq(std::pow(1e4, -i / 32.));
    v1::LayerRope* const still = spec.mutable_geometry()->add_layer_ropes();  // a layer that does not turn
    still->add_layers(0);
    still->mutable_rope()->mutable_inv_freq()->Resize(kDim / 2, 0);
    const bool by_layer = std::string(scorer) == "hybrid";  // one layer, so that its ranks are stated alone
    if (by_layer) {
      spec.mutable_geometry()->set_num_layers(1);
      spec.mutable_subspace()->add_key_ranks(24);
      spec.mutable_subspace()->add_value_ranks(24);
    } else {
      spec.mutable_subspace()->set_key_rank(24);
      spec.mutable_subspace()->set_value_rank(24);
    }
    auto* eviction = spec.mutable_eviction();
    eviction->mutable_scorer()->set_name(scorer);
    eviction->mutable_budget()->set_tokens(120);
    if (std::string(scorer) == "keydiff") eviction->mutable_budget()->set_heads(v1::HEAD_BUDGET_PYRAMID);
    if (std::string(scorer) == "hybrid") eviction->mutable_budget()->set_heads(v1::HEAD_BUDGET_ADAPTIVE);
    if (std::string(scorer) == "snapkv") eviction->mutable_scorer()->set_query_window(8);
    eviction->mutable_keep()->set_sinks(1);
    eviction->mutable_keep()->set_recent(2);
    eviction->set_interval(30);
    if (std::string(scorer) != "keydiff") eviction->set_keep_queries(30);
    Rpc& rpc = Add<v1::CreateIndexRequest, v1::CreateIndexResponse>(
        absl::StrCat("CreateIndex ", scorer), &CreateIndex, request,
        [](const auto& asked, const auto& answer) { ExpectSame(asked.spec(), answer.index().spec()); });
    auto& legal = rpc.legal;
    legal["spec.geometry.num_layers"] = legal["spec.geometry.num_kv_heads"] = Within(1, 1);
    legal["spec.geometry.rope.rotary_dim"] = legal["spec.geometry.layer_ropes.rope.rotary_dim"] = Within(0, 0);
    legal["spec.geometry.layer_ropes.layers"] = Within(0, by_layer ? 0 : kLayers - 1);
    legal["spec.zones.sink"] = legal["spec.zones.local"] = Within(0, kMostZone);
    legal["spec.zones.dense_threshold"] = Within(0, kInt32Max);
    legal["spec.codec.seed"] = [](Integer) { return true; };
    legal["spec.retrieval.top_k"] = Within(1, kMostTopK);
    legal["spec.retrieval.rescore_k"] = Within(0, kMostZone);
    legal["spec.memory_limit_bytes"] = Within(0, kInt64Max);
    legal["spec.subspace.key_rank"] = legal["spec.subspace.value_rank"] = by_layer ? Within(0, 0) : Within(1, kDim);
    legal["spec.subspace.key_ranks"] = legal["spec.subspace.value_ranks"] = Within(1, kDim);
    legal["spec.subspace.full_rank_pool"] = [](Integer v) { return v >= 1 && v <= 63 && v % 2 == 1; };
    legal["spec.subspace.interval"] = Within(1, 256);
    legal["spec.subspace.prompt_pool"] = Within(0, 4096);
    legal["spec.subspace.full_rank_queries"] = Within(0, 1024);
    legal["spec.subspace.min_spacing"] = legal["spec.subspace.carried_to"] = Within(0, kInt64Max);
    legal["spec.subspace.version_tokens"] = Within(1, kInt64Max);
    legal["spec.eviction.interval"] = Within(1, kInt32Max);
    legal["spec.eviction.budget.tokens"] = Within(100, kInt64Max);
    legal["spec.eviction.keep.sinks"] = legal["spec.eviction.keep.recent"] = Within(0, 3);
    const std::string name = scorer;
    legal["spec.eviction.keep_queries"] = Within(name == "snapkv" ? 8 : name == "expected_attention" ? 1 : 0, 65536);
    if (name == "snapkv") {
      legal["spec.eviction.scorer.query_window"] = Within(1, 30);
      legal["spec.eviction.scorer.kernel"] = Within(1, 1);
    }
    if (name == "expected_attention") {
      legal["spec.eviction.scorer.sink"] = Within(0, 100);
      legal["spec.eviction.scorer.future"] = Within(1, kMostZone);
    }
  }
}

}  // namespace seine::test
