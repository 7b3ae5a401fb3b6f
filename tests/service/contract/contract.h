// Three indexes in process, a right request for every call with a model of what it answers, and what calls can see.
#ifndef SEINE_TESTS_SERVICE_CONTRACT_CONTRACT_H_
#define SEINE_TESTS_SERVICE_CONTRACT_CONTRACT_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "service/calls/calls.h"
#include "service/calls/decode_session.h"
#include "tests/service/contract/fields.h"
#include "tests/service/fixture.h"

namespace seine::test {

using google::protobuf::Message;

inline constexpr int64_t kHeld = 200, kZone = 64;  // tokens a layer, and of them in the zone
inline constexpr int kTopK = 8;
inline constexpr Integer kInt32Max = INT32_MAX, kInt64Max = INT64_MAX;
inline constexpr Integer kMostZone = 1 << 24, kMostTopK = 65536;

v1::Tensor Singles(const std::vector<int64_t>& shape);  // fp32 in [-1, 1]

// A call with a right request, and what is expected of it.
struct Rpc {
  std::string name;
  std::shared_ptr<Message> right, answer;
  std::function<absl::Status(const Message&, Message*)> call;
  std::function<void(const Message&, const Message&)> check;       // a taken request's answer
  std::map<std::string, std::function<bool(Integer)>> legal = {};  // by FieldPlace::rule; none other
  bool changes = false;
};

class Contract : public ::testing::Test {
 protected:
  void SetUp() override;

  void Make(const v1::IndexSpec& spec);
  v1::SequenceHandle NewSequence(const std::string& index, const std::string& id);
  static v1::AppendItem Tokens(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t count);
  absl::Status Fill(const v1::SequenceHandle& handle, int layer, int64_t count, bool queries);
  static v1::SequenceHandle Named(const std::string& index, const std::string& id);
  static v1::SequenceHandle Work(const std::string& index) { return Named(index, "work"); }
  static v1::SequenceHandle Pristine(const std::string& index) { return Named(index, "pristine"); }

  // Makes the sequence that calls work on anew.
  void Renew(const std::string& index);

  // What calls can see of the server and of the sequence worked on.
  std::string Digest(const std::string& index);

  template <typename Request, typename Response>
  Rpc& Add(const std::string& name, absl::Status (*call)(Core&, const Request&, Response*), const Request& right,
           std::function<void(const Request&, const Response&)> check) {
    Rpc rpc;
    rpc.name = name;
    rpc.right = std::make_shared<Request>(right);
    rpc.answer = std::make_shared<Response>();
    rpc.call = [this, call](const Message& request, Message* response) {
      return call(*core_, *static_cast<const Request*>(&request), static_cast<Response*>(response));
    };
    rpc.check = [check](const Message& request, const Message& response) {
      if (check) check(*static_cast<const Request*>(&request), *static_cast<const Response*>(&response));
    };
    return rpcs_.emplace_back(std::move(rpc));
  }

  void AddAll();
  void AddIndexes();
  void AddEvictions();

  // The call's own status, or else the first that its answer holds.
  static absl::Status StatusOfCall(const Rpc& rpc, const Message& request, Message* answer);

  bool Legal(const Rpc& rpc, const FieldPlace& place, Integer value, const std::string& index) const;

  // A refusal names the field: a path of the request at it, above it or beside it, or the field within the text.
  static void ExpectNamed(const Message& request, const FieldPlace& place, const absl::Status& status);

  static std::string IndexOf(const Message& request);  // that it names

  TempDir dir_;
  std::unique_ptr<Core> core_;
  std::vector<Rpc> rpcs_;
  std::map<std::string, uint64_t> generations_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_CONTRACT_CONTRACT_H_
