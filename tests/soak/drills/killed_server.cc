#include "tests/soak/drills/killed_server.h"

#include <fstream>

#include "tests/soak/drills/killed_sequence.h"

namespace seine::soak {

KilledServer::KilledServer(std::vector<std::string> more) {
  std::ofstream(folder() + "/seined.yaml") << kKillConfig;
  flags_ = {"--threads",
            "1",
            "--config",
            folder() + "/seined.yaml",
            "--snapshots-dir",
            snapshots(),
            "--snapshots-at-exit",
            "--snapshots-restore-on-start"};
  for (std::string& flag : more) flags_.push_back(flag == "FOLDER" ? snapshots() : std::move(flag));
}

bool KilledServer::Start(Result* result) {
  server_ = nullptr;
  server_ = std::make_unique<SoakedServer>(flags_);
  client_ = std::make_unique<Client>(server_->address());
  if (server_->Serves()) return true;
  ++result->crashes;
  result->Note("the server did not start: " + server_->process().Output());
  return false;
}

int KilledServer::End(Result* result) { return server_ == nullptr ? 0 : server_->End(result); }

}  // namespace seine::soak
