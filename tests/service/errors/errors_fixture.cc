// Prepares what every case of an error needs, and runs the cases.
#include "tests/service/errors/errors_fixture.h"

#include "kernels/backend.h"
#include "tests/service/contract/fields.h"

namespace seine::test {

ErrorsTest::Outcome ErrorsTest::FromCall(const grpc::Status& status) {
  return {status.error_code(), status.error_message(), DetailsOf(status)};
}
ErrorsTest::Outcome ErrorsTest::FromAnswer(const v1::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.message(), DetailsOf(status)};
}

void ErrorsTest::SetUp() {
  ServerTest::SetUp();
  keys_ = NewSequence("keys", "first");
  both_ = NewSequence("both", "first");
  none_ = NewSequence("none", "first");
  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(Append(Item(keys_, layer, 0, 300)).ok());
    ASSERT_TRUE(Append(Item(none_, layer, 0, 300)).ok());
    ASSERT_TRUE(Append(WithValues(layer, 0, 300)).ok());
  }
  NewSequence("keys", "second");
  stale_ = NewSequence("keys", "stale");
  v1::DeleteSequenceRequest remove;
  v1::DeleteSequenceResponse removed;
  *remove.mutable_handle() = stale_;
  ASSERT_TRUE(Call(*stubs_->sequence, &v1::SequenceService::Stub::DeleteSequence, remove, &removed).ok());
  NewSequence("keys", "stale");
}

v1::AppendItem ErrorsTest::WithValues(int layer, int64_t position, int64_t tokens) {
  v1::AppendItem item = Item(both_, layer, position, tokens);
  *item.mutable_values() = Halves({tokens, kKvHeads, kDim}, 2);
  return item;
}

void ErrorsTest::RunAll(size_t at_least) {
  ASSERT_GE(cases_.size(), at_least);
  const std::string before = Digest();
  for (const Case& c : cases_) {
    const Outcome outcome = c.run();
    EXPECT_EQ(outcome.code, c.code) << c.name << ": " << outcome.message;
    EXPECT_EQ(outcome.details.field, c.field) << c.name << ": " << outcome.message;
    EXPECT_EQ(outcome.message.rfind(c.field + ": ", 0), 0u) << c.name << ": " << outcome.message;
    EXPECT_TRUE(c.request == nullptr || PathExists(c.request, outcome.details.field)) << c.name;
    EXPECT_FALSE(outcome.details.reason.empty()) << c.name;
    EXPECT_LT(outcome.message.size(), 400u) << c.name;
  }
  EXPECT_EQ(Digest(), before);
}

// Once for the tests of every file here.
INSTANTIATE_TEST_SUITE_P(Serving, ErrorsTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Polling" : "Default"; });

}  // namespace seine::test
