// A server in process under attack: every method with right requests to spoil, what calls can see of its state, and the
// way back to the state before.
#ifndef SEINE_TESTS_SERVICE_CONTRACT_ADVERSARY_H_
#define SEINE_TESTS_SERVICE_CONTRACT_ADVERSARY_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "service/transport/rpc_methods.h"
#include "tests/service/contract/contract.h"

namespace seine::test {

// A method of the wire contract. Decode is one as well: a stream of one step.
struct AttackedMethod {
  std::string service, name;  // "seine.v1.RetrievalService", "Retrieve"
  const RpcMethod* listed = nullptr;
  bool changes = false;
  const Message *request = nullptr, *response = nullptr;  // empty ones
  std::vector<std::unique_ptr<Message>> rights;           // requests that are answered

  std::unique_ptr<Message> NewRequest() const { return std::unique_ptr<Message>(request->New()); }
  std::unique_ptr<Message> NewResponse() const { return std::unique_ptr<Message>(response->New()); }
};

class Adversary : public Contract {
 public:
  void SetUp() override;
  const std::vector<AttackedMethod>& methods() const { return methods_; }
  const AttackedMethod& method(const std::string& name) const;
  Core& core() { return *core_; }

  // As whoever lives in the same process calls it, and as it is served: from bytes.
  absl::Status Call(const AttackedMethod& method, const Message& request, Message* answer);
  absl::Status CallBytes(const AttackedMethod& method, const std::string& bytes, Message* answer);

  // All that calls can see: indexes, sequences, heads, and some rows of each head.
  std::string State();
  // Brings the state of SetUp back; sequences that are worked on get a new generation.
  void Restore();

 private:
  void MakeDoomed();
  void AddRights(const std::string& name, const Message& right);
  void CollectMethods();
  void CollectRights();
  std::string StateOf(const v1::SequenceHandle& handle, bool values);
  void DropStrangers();
  bool IsWhole();

  std::vector<AttackedMethod> methods_;
  std::map<std::string, std::string> pristine_;  // state of each index's first sequence
};

// What is wrong with an outcome, or nothing: a code outside the contract, an error that names no field of the request
// or has no reason, a text of several lines, a number of an answer that is not finite.
std::string FaultOf(const Message& request, const absl::Status& status, const Message& answer);

// Whether nothing was done, so that nothing may have changed.
bool AllRefused(const absl::Status& status, const Message& answer);

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_CONTRACT_ADVERSARY_H_
