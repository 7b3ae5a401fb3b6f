// Floats and texts of every request at awkward values, answers that would be too long, and steps that fail midway.
#include <cmath>
#include <iostream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "index/index.h"
#include "kernels/backend.h"
#include "service/catalog.h"
#include "service/fields/error.h"
#include "tests/index/test_util.h"
#include "tests/service/contract/contract.h"

namespace seine::test {
namespace {

class ContractValues : public Contract {
 protected:
  // Appends to a new sequence of the index and asks it everything that its settings bear on: whether all is finite.
  bool AnswersAreFinite(const v1::IndexSpec& spec) {
    const v1::SequenceHandle handle = NewSequence(spec.name(), "probe");
    const absl::Status filled = Fill(handle, 0, kHeld, spec.eviction().keep_queries() > 0);
    EXPECT_TRUE(filled.ok()) << filled;
    v1::RetrieveRequest retrieve;
    v1::RetrieveResponse found;
    *retrieve.add_items() = Query(handle, 0);
    retrieve.mutable_selector()->set_with_scores(true);
    v1::AttendRequest attend;
    v1::AttendResponse attended;
    *attend.add_items() = Query(handle, 0);
    v1::ScoreRequest score;
    v1::ScoreResponse scores;
    *score.mutable_handle() = handle;
    *score.mutable_scorer() = spec.eviction().scorer();
    v1::DescribeHeadRequest describe;
    v1::DescribeHeadResponse head;
    *describe.mutable_handle() = handle;
    EXPECT_TRUE(Retrieve(*core_, retrieve, &found).ok() && FirstFailure(found) == nullptr);
    EXPECT_TRUE(Attend(*core_, attend, &attended).ok() && FirstFailure(attended) == nullptr);
    const absl::Status scored = Score(*core_, score, &scores);
    EXPECT_TRUE(scored.ok()) << scored;
    EXPECT_TRUE(DescribeHead(*core_, describe, &head).ok());
    return IsFinite(found) && IsFinite(attended) && IsFinite(scores) && IsFinite(head);
  }
  void Drop(const std::string& name) {
    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name(name);
    DeleteIndex(*core_, remove, &removed).IgnoreError();
  }
};

TEST_F(ContractValues, EveryFloatOfEveryRequest) {
  AddAll();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int cases = 0, taken = 0;
  for (const Rpc& rpc : rpcs_) {
    const std::string index = IndexOf(*rpc.right);
    for (const FieldPlace& place : ScalarsOf(*rpc.right)) {
      if (!IsFloat(place.field())) continue;
      const bool wide = place.field()->cpp_type() == Descriptor::CPPTYPE_DOUBLE;
      const double most = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
      const double least = wide ? std::numeric_limits<double>::denorm_min() : std::numeric_limits<float>::denorm_min();
      for (const double value : {0.0, 1.0, -1.0, .99, 1e3, 1e4, 1e6, most, -most, least, kInfinity, -kInfinity,
                                 std::numeric_limits<double>::quiet_NaN()}) {
        std::unique_ptr<Message> request(rpc.right->New());
        request->CopyFrom(*rpc.right);
        SetFloat(place, value, request.get());
        SCOPED_TRACE(absl::StrCat(rpc.name, ": ", place.path(), " = ", value));
        ++cases;
        const absl::Status status = StatusOfCall(rpc, *request, rpc.answer.get());
        if (status.ok()) {
          ++taken;
          EXPECT_TRUE(std::isfinite(value));
          EXPECT_TRUE(IsFinite(*rpc.answer));
          if (rpc.name.starts_with("CreateIndex")) {
            EXPECT_TRUE(AnswersAreFinite(static_cast<const v1::CreateIndexRequest&>(*request).spec()));
          }
        } else {
          ExpectNamed(*request, place, status);
        }
        Drop("made");
        if (rpc.changes) Renew(index);
      }
    }
  }
  std::cout << cases << " cases, " << taken << " of them taken\n";
  EXPECT_GT(cases, 1000);
}

// Errors travel in trailers, of which clients take 8 KB.
TEST_F(ContractValues, LongTextsMakeShortErrors) {
  AddAll();
  std::string mixed = "name\n\x7f\xff";
  for (int i = 0; i < 2000; ++i) mixed += "\xC3\xA9 ";
  int refused = 0;
  for (const Rpc& rpc : rpcs_) {
    for (const FieldPlace& place : ScalarsOf(*rpc.right)) {
      if (place.field()->cpp_type() != Descriptor::CPPTYPE_STRING) continue;
      if (place.field()->type() != Descriptor::TYPE_STRING) continue;
      for (const std::string& text : {std::string(7000, 'x'), std::string(7000, '\x01'), mixed, "{\"a\": " + mixed}) {
        std::unique_ptr<Message> request(rpc.right->New());
        request->CopyFrom(*rpc.right);
        SetString(place, text, request.get());
        SCOPED_TRACE(absl::StrCat(rpc.name, ": ", place.path()));
        const absl::Status status = rpc.call(*request, rpc.answer.get());
        if (status.ok()) continue;
        ++refused;
        v1::Status travels;
        ToProto(status, &travels);
        EXPECT_LT(travels.ByteSizeLong(), 2000u) << status;
        EXPECT_LT(travels.message().size(), 500u);
        for (const char c : travels.message()) EXPECT_TRUE(c < 0 || (c >= ' ' && c < '\x7f'));
        EXPECT_FALSE(absl::StrContains(travels.message(), '\xff'));
      }
      Drop("made");
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Quoted, IsCutBetweenCharacters) {
  EXPECT_EQ(Quoted("plain"), "'plain'");
  EXPECT_EQ(Quoted("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(Quoted(std::string(200, 'x')), "'" + std::string(200, 'x') + "'");
  EXPECT_EQ(Quoted(std::string(201, 'x')), "'" + std::string(200, 'x') + "...'");
  EXPECT_EQ(Quoted(std::string(199, 'x') + "\xC3\xA9"), "'" + std::string(199, 'x') + "...'");
  EXPECT_EQ(Quoted(std::string(198, 'x') + "\xC3\xA9"), "'" + std::string(198, 'x') + "\xC3\xA9'");
  EXPECT_EQ(Quoted("\xE0\x99\x93"), "'\\xe0\\x99\\x93'");  // longer than its character needs
  EXPECT_EQ(Quoted("\xED\xA0\x80"), "'\\xed\\xa0\\x80'");  // half a pair of UTF-16
}

TEST_F(ContractValues, OneRuleForIds) {
  v1::CreateSequenceRequest request;
  v1::CreateSequenceResponse response;
  request.set_index("plain");
  const std::pair<std::string, bool> ids[] = {
      {std::string(128, 'i'), true},  {"a/b:c", true},      {"~", true},
      {std::string(129, 'i'), false}, {"two words", false}, {"\xC3\xA9", false}};
  for (const auto& [id, legal] : ids) {
    request.set_id(id);
    const absl::Status status = CreateSequence(*core_, request, &response);
    EXPECT_EQ(status.ok(), legal) << status;
    EXPECT_TRUE(legal || absl::StartsWith(status.message(), "id: expected 1 to 128")) << status;
    EXPECT_EQ(core_->catalog.Find("", "plain")->CreateSequence(id + (id.size() == 128 ? "" : ".")).ok(),
              legal && id.size() < 128);
  }
}

TEST_F(ContractValues, GivenScoresAreNamedOneByOne) {
  v1::ScoreRequest request;
  v1::ScoreResponse response;
  *request.mutable_handle() = Work("plain");
  request.mutable_scorer()->set_name("client");
  for (int h = 0; h < kKvHeads; ++h) *request.mutable_given()->add_scores() = Singles({kHeld - h});
  EXPECT_TRUE(absl::StartsWith(Score(*core_, request, &response).message(), "given.scores[1]: 199 for"));
  *request.mutable_given()->mutable_scores(1) = Singles({kHeld});
  request.mutable_given()->mutable_scores(1)->mutable_raw()->replace(0, 4, "\xff\xff\xff\xff");
  EXPECT_TRUE(absl::StartsWith(Score(*core_, request, &response).message(), "given.scores[1]: token 0"));
}

// A server whose messages are short.
class ShortMessages : public ::testing::Test {
 protected:
  ShortMessages() : core_(Options(), MakeCpuBackend(1)) {
    v1::CreateIndexRequest create;
    v1::CreateIndexResponse created;
    *create.mutable_spec() = Spec("plain", v1::KV_STORE_KEYS);
    EXPECT_TRUE(CreateIndex(core_, create, &created).ok());
    for (int i = 0; i < kMany; ++i) {
      v1::CreateSequenceRequest request;
      v1::CreateSequenceResponse response;
      request.set_index("plain");
      request.set_id(absl::StrCat("s", 1000 + i));
      EXPECT_TRUE(CreateSequence(core_, request, &response).ok());
    }
  }
  static CoreOptions Options() {
    CoreOptions options;
    options.threads = 1;
    options.workers = 1;
    options.max_message_bytes = 4096;
    return options;
  }
  static constexpr int kMany = 250;
  Core core_;
};

TEST_F(ShortMessages, SequencesAreListedInPages) {
  v1::ListSequencesRequest request;
  request.set_index("plain");
  v1::ListSequencesResponse response;
  const absl::Status all = ListSequences(core_, request, &response);
  EXPECT_EQ(all.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(absl::StartsWith(all.message(), "page_size: ")) << all;
  for (const int size : {1, 7, 60, 250, 1 << 30}) {
    request.set_page_size(size);
    request.clear_page_token();
    std::vector<std::string> ids;
    int pages = 0;
    do {
      response.Clear();
      ASSERT_TRUE(ListSequences(core_, request, &response).ok());
      ASSERT_GT(response.sequences_size(), 0);
      EXPECT_LE(response.sequences_size(), size);
      EXPECT_LE(response.ByteSizeLong(), 4096u);
      for (const auto& sequence : response.sequences()) ids.push_back(sequence.handle().id());
      request.set_page_token(response.next_page_token());
      ++pages;
    } while (!request.page_token().empty() && pages <= kMany);
    ASSERT_EQ(ids.size(), static_cast<size_t>(kMany)) << size;
    for (int i = 0; i < kMany; ++i) EXPECT_EQ(ids[i], absl::StrCat("s", 1000 + i));
    EXPECT_GE(pages, (kMany + size - 1) / size);
  }
  request.set_page_token("no id");
  EXPECT_TRUE(absl::StartsWith(ListSequences(core_, request, &response).message(), "page_token: "));
}

TEST_F(ShortMessages, LongAnswersAreRefusedBeforeTheyAreMade) {
  v1::AppendRequest append;
  v1::AppendResponse appended;
  v1::SequenceHandle handle;
  handle.set_index("plain");
  handle.set_id("s1000");
  *append.mutable_item() = Item(handle, 0, 0, 600);
  ASSERT_TRUE(Append(core_, append, &appended).ok());
  v1::ScoreRequest score;
  v1::ScoreResponse scores;
  *score.mutable_handle() = handle;
  score.mutable_scorer()->set_name("knorm");
  const absl::Status scored = Score(core_, score, &scores);
  EXPECT_EQ(scored.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(scored.message(), "handle: the answer would pass 4096 bytes")) << scored;
  v1::EvictRequest evict;
  v1::EvictResponse kept;
  *evict.mutable_handle() = handle;
  evict.mutable_budget()->set_tokens(590);
  EXPECT_FALSE(Evict(core_, evict, &kept).ok());
  v1::DescribeHeadRequest describe;
  v1::DescribeHeadResponse head;
  *describe.mutable_handle() = handle;
  ASSERT_TRUE(DescribeHead(core_, describe, &head).ok());
  EXPECT_EQ(head.num_retained(), 600);
  for (int i = 0; i < 100; ++i) {
    v1::CreateIndexRequest create;
    v1::CreateIndexResponse created;
    *create.mutable_spec() = Spec(absl::StrCat("more", i), v1::KV_STORE_KEYS);
    ASSERT_TRUE(CreateIndex(core_, create, &created).ok());
  }
  v1::ListIndexesResponse indexes;
  EXPECT_EQ(ListIndexes(core_, {}, &indexes).code(), absl::StatusCode::kOutOfRange);
}

// What ends between the appends and the search: the appends are in, and each item says what became of it.
TEST_F(ContractValues, AStepThatCannotSearchSaysSoOfEachItem) {
  auto backend = std::make_unique<testing::TestBackend>();
  testing::TestBackend* const failing = backend.get();
  core_ = std::make_unique<Core>(core_->options, std::move(backend));
  Make(Spec("plain", v1::KV_STORE_KEYS_VALUES));
  const v1::SequenceHandle handle = NewSequence("plain", "s");
  ASSERT_TRUE(Fill(handle, 0, kHeld, false).ok());
  v1::DecodeRequest step;
  *step.add_appends() = Tokens(handle, 0, kHeld, 1);
  *step.add_items() = Query(handle, 0);
  *step.add_items() = Query(handle, 1);  // holds nothing, and would be dense
  for (const bool attend : {false, true}) {
    if (attend) step.mutable_attention()->set_with_positions(true);
    step.mutable_appends(0)->CopyFrom(Tokens(handle, 0, kHeld + (attend ? 1 : 0), 1));
    v1::DecodeResponse answer;
    failing->fail_operation = 0;
    DecodeSession(*core_).Step(step, &answer, [] {});
    failing->fail_operation = -1;
    ASSERT_EQ(answer.append_status_size(), 1) << answer.ShortDebugString();
    EXPECT_EQ(answer.append_status(0).code(), 0);
    EXPECT_EQ(answer.status().code(), 0);
    ASSERT_EQ(answer.answers_size() + answer.attended_size(), 2);
    for (int i = 0; i < 2; ++i) {
      const v1::Status& status = attend ? answer.attended(i).status() : answer.answers(i).status();
      EXPECT_EQ(status.code(), static_cast<int>(absl::StatusCode::kResourceExhausted)) << status.message();
    }
  }
  v1::RetrieveRequest whole;  // a call that changes nothing fails as a whole
  v1::RetrieveResponse found;
  *whole.add_items() = Query(handle, 0);
  failing->fail_operation = 0;
  EXPECT_EQ(Retrieve(*core_, whole, &found).code(), absl::StatusCode::kResourceExhausted);
}

// A step that was refused holds no index any longer: deleting it gives its memory back.
TEST_F(ContractValues, ARefusedStepLetsItsIndexesGo) {
  Make(Spec("keyless", v1::KV_STORE_NONE));
  const v1::SequenceHandle other = NewSequence("keyless", "s");
  DecodeSession session(*core_);
  v1::DecodeRequest step;
  v1::DecodeResponse answer;
  *step.add_items() = Query(Work("plain"), 0);
  *step.add_items() = Query(other, 0);
  step.mutable_selector()->set_exact(true);
  session.Step(step, &answer, [] {});
  EXPECT_NE(answer.status().code(), 0);
  const std::weak_ptr<Index> held = core_->catalog.Find("", "plain");
  Drop("plain");
  EXPECT_TRUE(held.expired());
}

}  // namespace
}  // namespace seine::test
