// Messages of some megabytes are parsed in pieces, between which long work makes way.
#include "service/transport/message_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "seine/v1/retrieval_service.pb.h"

namespace seine {
namespace {

class CountingYielder final : public Yielder {
 public:
  bool held() const override { return false; }
  bool Yield() override {
    ++yields;
    return false;
  }
  int yields = 0;
};

v1::AppendRequest RequestOf(size_t bytes) {
  v1::AppendRequest request;
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + i / 251);
  request.mutable_item()->mutable_keys()->set_raw(data);
  return request;
}

// As it comes from a socket: in slices.
grpc::ByteBuffer Sliced(const google::protobuf::Message& message, size_t slice_bytes) {
  const std::string wire = message.SerializeAsString();
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < wire.size(); at += slice_bytes) slices.emplace_back(wire.substr(at, slice_bytes));
  return {slices.data(), slices.size()};
}

TEST(MessageBytes, ParsingMakesWayAfterEachPiece) {
  constexpr int kPieces = 16;
  const v1::AppendRequest sent = RequestOf(kPieces * MessageReader::kPiece);
  for (const size_t slice : {size_t{1000}, size_t{8} << 10, size_t{64} << 10}) {
    grpc::ByteBuffer bytes = Sliced(sent, slice);
    v1::AppendRequest got;
    CountingYielder yielder;
    {
      const YieldScope scope(&yielder);
      ASSERT_TRUE(Parse(&bytes, &got).ok());
    }
    EXPECT_EQ(got.item().keys().raw(), sent.item().keys().raw());
    EXPECT_GE(yielder.yields, kPieces - 2) << slice;
    EXPECT_LE(yielder.yields, kPieces + 1) << slice;
    EXPECT_FALSE(bytes.Valid()) << "the bytes are let go of";
  }
}

TEST(MessageBytes, AShortMessageIsOnePiece) {
  grpc::ByteBuffer bytes = Sliced(RequestOf(1000), 100);
  v1::AppendRequest got;
  CountingYielder yielder;
  const YieldScope scope(&yielder);
  ASSERT_TRUE(Parse(&bytes, &got).ok());
  EXPECT_EQ(yielder.yields, 0);
}

TEST(MessageBytes, WorkThatMakesWayForNothingIsParsed) {
  const v1::AppendRequest sent = RequestOf(4 * MessageReader::kPiece);
  grpc::ByteBuffer bytes = Sliced(sent, 5000);
  v1::AppendRequest got;
  ASSERT_TRUE(Parse(&bytes, &got).ok());
  EXPECT_EQ(got.item().keys().raw(), sent.item().keys().raw());
}

TEST(MessageBytes, WhatIsNoMessageIsRefused) {
  const grpc::Slice slice(std::string(3 * MessageReader::kPiece, '\xff'));
  grpc::ByteBuffer bytes(&slice, 1), none;
  v1::AppendRequest got;
  EXPECT_EQ(Parse(&bytes, &got).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse(&none, &got).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace seine
