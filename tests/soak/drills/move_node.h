// A server between which and another families move: its address stays when it is killed and started again.
#ifndef SEINE_TESTS_SOAK_DRILLS_MOVE_NODE_H_
#define SEINE_TESTS_SOAK_DRILLS_MOVE_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/soak/result.h"
#include "tests/soak/server/made_requests.h"
#include "tests/soak/server/server_process.h"
#include "tests/soak/server/soaked_server.h"

namespace seine::soak {

// What a node says of a family.
struct FamilyAt {
  bool holds = false;           // it answers for it
  bool takes = false;           // changes
  bool moved = false;           // it names another node
  uint64_t generation = 0;      // that it knows
  std::vector<int64_t> tokens;  // of its layers, where it holds them
};

// Appends a token of a family, as its position has it. False: the call was not answered with OK.
bool AppendOne(Client& client, const std::string& family, int layer, int64_t position);

class MoveNode {
 public:
  // `folder` has seined.yaml, and the snapshots of all nodes.
  MoveNode(std::string folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

  // False, and noted as a crash: it does not serve within 30 s.
  bool Start(Result* result);
  // Ends it in order: its families are in files then. False, and noted: it does not end with 0.
  bool End(Result* result);

  std::string address() const { return "unix:" + folder_ + "/" + name_ + ".sock"; }
  ChildProcess& process() { return *process_; }
  Client& client() { return *client_; }

  FamilyAt Look(const std::string& family);
  // False: nobody serves at its address.
  bool Answers();
  // Deletes a family. False: it is frozen.
  bool Drop(const std::string& family);
  // Restores files in which each adds to the one before.
  bool Restore(const std::vector<std::string>& files, uint64_t generation);

 private:
  const std::string folder_, name_;
  std::unique_ptr<ChildProcess> process_;
  std::unique_ptr<Client> client_;
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_MOVE_NODE_H_
