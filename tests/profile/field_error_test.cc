// Errors that carry their field: what the payload says, and how it moves into a larger message.
#include "profile/field_error.h"

#include <gtest/gtest.h>

namespace seine {
namespace {

TEST(FieldError, NamesItsFieldInTextAndAsData) {
  const absl::Status status = FieldError(absl::StatusCode::kNotFound, "handle", "not found: 'a: b'");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "handle: not found: 'a: b'");
  EXPECT_EQ(FieldOf(status), "handle");
  EXPECT_EQ(WhatOf(status), "not found: 'a: b'");
  EXPECT_EQ(BadField("top_k", -1, " is not in [", 1, ", ", 9, "]").message(), "top_k: -1 is not in [1, 9]");
}

TEST(FieldError, TextAloneNamesNoField) {
  const absl::Status status = absl::InternalError("keys: lost");
  EXPECT_EQ(FieldOf(status), "");
  EXPECT_EQ(WhatOf(status), "keys: lost");
  EXPECT_EQ(FieldOf(absl::OkStatus()), "");
}

TEST(FieldError, MovesIntoAGroup) {
  const absl::Status inner = BadField("budget.tokens", "none");
  const absl::Status outer = InGroup(inner, "eviction");
  EXPECT_EQ(outer, BadField("eviction.budget.tokens", "none"));
  EXPECT_EQ(WithField(outer, "keep"), BadField("keep", "none"));
  EXPECT_EQ(InGroup(absl::UnavailableError("busy"), "item"),
            FieldError(absl::StatusCode::kUnavailable, "item", "busy"));
  EXPECT_TRUE(InGroup(absl::OkStatus(), "item").ok());
  EXPECT_TRUE(WithField(absl::OkStatus(), "item").ok());
}

}  // namespace
}  // namespace seine
