// Every method of the wire contract with every field of its request spoiled in every way: answered with a code of the
// contract, an error that says which field, and nothing changed by what was refused.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "service/fields/error.h"
#include "service/snapshots/files/exit_files.h"
#include "tests/service/contract/adversary.h"
#include "tests/service/contract/spoil.h"

namespace seine::test {
namespace {

// Under sanitizers, which make calls ten times as slow, a part of the table is tried; a plain build tries it all.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kEvery = 23;
#else
constexpr int kEvery = 1;
#endif
constexpr int kEveryOfOthers = 3;  // requests of the same method that differ in a scorer
constexpr int kLeastCases = 600, kMostFaults = 10;

class AdversarialTable : public Adversary, public ::testing::WithParamInterface<std::string> {
 protected:
  // Judges the outcome of a case and brings back what it has changed.
  void Judge(const std::string& what, const Message& request, const absl::Status& status) {
    ++tried_;
    const std::string fault = FaultOf(request, status, *answer_);
    if (!fault.empty()) Fault(what, fault);
    const v1::Status* const failure = FirstFailure(*answer_);
    const auto code =
        status.ok() && failure != nullptr ? static_cast<absl::StatusCode>(failure->code()) : status.code();
    ++by_code_[absl::StatusCodeToString(code)];
    if (!AllRefused(status, *answer_)) {
      if (!method_->changes) return;  // the next case finds out
      Restore();
      Remember();
      return;
    }
    const std::string after = State();
    if (after == before_) return;
    Fault(what, absl::StrCat("refused, and something has changed: ", status.ToString()));
    Restore();
    Remember();
  }
  // Restore may have made everything anew.
  void Remember() {
    method_ = &method(GetParam());
    before_ = State();
  }
  void Fault(const std::string& what, const std::string& fault) {
    if (++faults_ <= kMostFaults) ADD_FAILURE() << GetParam() << ": " << what << ": " << fault;
  }
  bool Skipped() { return cases_++ % kEvery != 0; }

  void TryFields(const Message& right, bool first) {
    int number = 0;
    const SpoiltRequest visit = [&](const std::string& what, const Message& request) {
      if (!first && number++ % kEveryOfOthers != 0) return;
      if (!Skipped()) Judge(what, request, Call(*method_, request, answer_.get()));
    };
    SpoilFields(right, visit);
    if (first) SpoilTensors(right, visit);
  }
  void TryBytes(const Message& right) {
    SpoilBytes(right, [this, &right](const std::string& what, const std::string& bytes) {
      if (!Skipped()) Judge(what, right, CallBytes(*method_, bytes, answer_.get()));
    });
  }

  const AttackedMethod* method_ = nullptr;
  std::unique_ptr<Message> answer_;
  std::string before_;
  int cases_ = 0, tried_ = 0, faults_ = 0;
  std::map<std::string, int> by_code_;
};

TEST_P(AdversarialTable, IsAnsweredAsTheContractSays) {
  Remember();
  answer_ = method_->NewResponse();
  std::vector<std::unique_ptr<Message>> rights;  // a method's own are made anew with everything else
  for (const auto& right : method_->rights) {
    rights.push_back(method_->NewRequest());
    rights.back()->CopyFrom(*right);
  }
  for (size_t i = 0; i < rights.size(); ++i) {
    const absl::Status status = Call(*method_, *rights[i], answer_.get());
    EXPECT_TRUE(status.ok() && FirstFailure(*answer_) == nullptr) << i << ": " << status;
    if (method_->changes) Restore(), Remember();
    TryFields(*rights[i], /*first=*/i == 0);
  }
  TryBytes(*rights[0]);
  std::cout << tried_ << " of " << cases_ << " cases";
  for (const auto& [code, count] : by_code_) std::cout << ", " << count << " " << code;
  std::cout << std::endl;
  EXPECT_GE(cases_, kLeastCases);
  EXPECT_GT(by_code_["INVALID_ARGUMENT"], 0);
  EXPECT_EQ(faults_, 0);
}

// That the table bites: outcomes outside the contract are called so, and a change is seen.
TEST_F(Adversary, FaultsAreFound) {
  v1::GatherRequest request;
  v1::GatherResponse answer;
  const auto fault = [&](const absl::Status& status) { return FaultOf(request, status, answer); };
  EXPECT_EQ(fault(absl::OkStatus()), "");
  EXPECT_EQ(fault(FieldError("WRONG", "positions.shape", "is wrong")), "");
  EXPECT_NE(fault(FieldError("WRONG", "items[0].layer", "is wrong")), "");
  EXPECT_NE(fault(absl::InternalError("lost")), "");
  EXPECT_NE(fault(absl::UnknownError("lost")), "");
  EXPECT_NE(fault(absl::InvalidArgumentError("positions: is wrong")), "");
  EXPECT_NE(fault(Overloaded("FULL", "", absl::ZeroDuration())), "");
  absl::Status lines = FieldError("WRONG", "positions", "is wrong");
  absl::Status two(lines.code(), "positions: is\nwrong");
  lines.ForEachPayload([&](absl::string_view url, const absl::Cord& value) { two.SetPayload(url, value); });
  EXPECT_NE(fault(two), "");
  *answer.mutable_keys() = Singles({1});
  EXPECT_EQ(fault(absl::OkStatus()), "");
  answer.mutable_keys()->set_raw("\xff\xff\xff\xff");
  EXPECT_NE(fault(absl::OkStatus()), "");
  const std::string before = State();
  EXPECT_EQ(State(), before);
  v1::AppendRequest append;
  *append.mutable_item() = Tokens(Work("plain"), 1, kHeld, 1);
  v1::AppendResponse appended;
  ASSERT_TRUE(Append(core(), append, &appended).ok());
  EXPECT_NE(State(), before);
}

std::vector<std::string> AllMethods() {
  std::vector<std::string> names = {"Decode"};
  for (const RpcMethod& listed : RpcMethods()) names.push_back(listed.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Every, AdversarialTable, ::testing::ValuesIn(AllMethods()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace seine::test
