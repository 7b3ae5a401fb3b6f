// What calls do with every field of every request at awkward values, in process: refused by name with nothing changed,
// or taken and answered as a small model says.
#include <cmath>
#include <iostream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/fields/error.h"
#include "tests/service/contract/contract.h"

namespace seine::test {
namespace {

// Whether a step has appended, whatever else came of it.
bool Appended(const Message& answer) {
  if (answer.GetDescriptor() != v1::DecodeResponse::descriptor()) return false;
  const auto& step = static_cast<const v1::DecodeResponse&>(answer);
  return step.append_status_size() > 0 && step.append_status(0).code() == 0;
}

TEST_F(Contract, EveryIntegerOfEveryRequest) {
  AddAll();
  int cases = 0, taken = 0;
  std::set<std::string> met, all;
  for (const Rpc& rpc : rpcs_) {
    const std::string index = IndexOf(*rpc.right);
    all.merge(IntegersBelow(rpc.right->GetDescriptor()));
    {
      const absl::Status status = StatusOfCall(rpc, *rpc.right, rpc.answer.get());
      ASSERT_TRUE(status.ok()) << rpc.name << ": " << status;
      rpc.check(*rpc.right, *rpc.answer);
    }
    v1::DeleteIndexRequest remove;
    v1::DeleteIndexResponse removed;
    remove.set_name("made");
    DeleteIndex(*core_, remove, &removed).IgnoreError();
    Renew(index);
    std::string before = Digest(index);
    for (const FieldPlace& place : ScalarsOf(*rpc.right)) {
      if (!IsInteger(place.field())) continue;
      met.insert(place.field()->full_name());
      for (const Integer value : {Integer{0}, Integer{1}, Integer{-1}, kInt32Max, kInt32Max + 1, -kInt32Max - 1,
                                  (kInt32Max + 1) * 2, kInt64Max, -kInt64Max - 1, 2 * kInt64Max + 1}) {
        std::unique_ptr<Message> request(rpc.right->New());
        request->CopyFrom(*rpc.right);
        if (!SetInteger(place, value, request.get())) continue;
        ++cases;
        SCOPED_TRACE(absl::StrCat(rpc.name, ": ", place.path(), " = ", static_cast<double>(value)));
        const bool legal = Legal(rpc, place, value, index);
        const absl::Status status = StatusOfCall(rpc, *request, rpc.answer.get());
        EXPECT_EQ(status.ok(), legal) << status;
        if (status.ok()) {
          ++taken;
          rpc.check(*request, *rpc.answer);
        } else {
          ExpectNamed(*request, place, status);
        }
        const bool made = DeleteIndex(*core_, remove, &removed).ok();
        EXPECT_EQ(made, status.ok() && rpc.name.starts_with("CreateIndex"));
        if ((status.ok() && rpc.changes) || Appended(*rpc.answer)) {
          Renew(index);
          before = Digest(index);
        } else {
          const std::string after = Digest(index);
          EXPECT_TRUE(after == before) << "something has changed";
          before = after;
        }
      }
    }
  }
  std::cout << cases << " cases, " << taken << " of them taken\n";
  EXPECT_GT(cases, 1500);
  for (const std::string& field : met) all.erase(field);
  EXPECT_EQ(std::vector<std::string>(all.begin(), all.end()), std::vector<std::string>());
}

}  // namespace
}  // namespace seine::test
