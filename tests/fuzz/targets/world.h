// The server in process that targets of messages share: made once, and as it was after every input.
#ifndef SEINE_TESTS_FUZZ_TARGETS_WORLD_H_
#define SEINE_TESTS_FUZZ_TARGETS_WORLD_H_

#include <string>

#include "tests/service/contract/adversary.h"

namespace seine::fuzz {

class World : public test::Adversary {
 public:
  World() {
    SetUp();
    seen_ = State();
  }

  // Judges a call of the contract: ends the process where its outcome is none, or where a refused call has changed what
  // calls can see.
  void Judge(const test::AttackedMethod& method, const absl::Status& status, const google::protobuf::Message& answer);
  // After an input.
  void Settle();

 private:
  void TestBody() override {}

  std::string seen_;  // after what was done last
  bool dirty_ = false;
};

World& TheWorld();

}  // namespace seine::fuzz

#endif  // SEINE_TESTS_FUZZ_TARGETS_WORLD_H_
