#include "tests/soak/drills/move_node.h"

#include <signal.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/drills/killed_sequence.h"

namespace seine::soak {

bool AppendOne(Client& client, const std::string& family, int layer, int64_t position) {
  grpc::ClientContext context;
  v1::AppendRequest request;
  v1::AppendResponse response;
  *request.mutable_item() = Item(HandleOf(family), layer, position, 1, 7);
  return client.retrieval->Append(&context, request, &response).ok();
}

bool MoveNode::Start(Result* result) {
  process_ = nullptr;
  process_ = std::make_unique<ChildProcess>(
      std::vector<std::string>{SEINED_PATH, "--listen", address(), "--threads", "1", "--memory-limit", "256MiB",
                               "--config", folder_ + "/seined.yaml", "--snapshots-dir", folder_ + "/snapshots",
                               "--snapshots-node", name_, "--snapshots-at-exit", "--snapshots-restore-on-start"},
      folder_, name_, 0, 0);
  client_ = std::make_unique<Client>(address());
  if (WaitForLine(*process_, "listens on", 30)) return true;
  ++result->crashes;
  result->Note("a server did not start: " + process_->Output());
  return false;
}

bool MoveNode::End(Result* result) {
  process_->Signal(SIGTERM);
  if (process_->Wait(30) == 0) return true;
  ++result->crashes;
  result->Note("a server did not end in order: " + process_->Output());
  return false;
}

bool MoveNode::Answers() {
  grpc::ClientContext context;
  v1::ListFamilyStatesRequest request;
  v1::ListFamilyStatesResponse response;
  request.set_index(kKillIndex);
  return client_->admin->ListFamilyStates(&context, request, &response).error_code() != grpc::UNAVAILABLE;
}

FamilyAt MoveNode::Look(const std::string& family) {
  FamilyAt found;
  v1::ListFamilyStatesRequest states;
  v1::ListFamilyStatesResponse listed;
  states.set_index(kKillIndex);
  states.set_family(family);
  grpc::ClientContext list;
  client_->admin->ListFamilyStates(&list, states, &listed);
  for (const v1::FamilyStateInfo& info : listed.families()) {
    found.moved = info.state() == v1::FAMILY_STATE_MOVED;
    found.generation = info.generation();
  }
  v1::GetSequenceRequest request;
  v1::GetSequenceResponse response;
  *request.mutable_handle() = HandleOf(family);
  grpc::ClientContext get;
  found.holds = client_->sequence->GetSequence(&get, request, &response).ok();
  const auto& tokens = response.sequence().layer_tokens();
  found.tokens.assign(tokens.begin(), tokens.end());
  found.takes = found.holds && AppendOne(*client_, family, 0, 0);  // it is there, so nothing changes
  return found;
}

bool MoveNode::Drop(const std::string& family) {
  grpc::ClientContext context;
  v1::DeleteSequenceRequest request;
  v1::DeleteSequenceResponse response;
  *request.mutable_handle() = HandleOf(family);
  return client_->sequence->DeleteSequence(&context, request, &response).error_code() != grpc::UNAVAILABLE;
}

bool MoveNode::Restore(const std::vector<std::string>& files, uint64_t generation) {
  std::string base;
  for (const std::string& file : files) {
    grpc::ClientContext context;
    v1::RestoreRequest request;
    v1::RestoreResponse response;
    request.set_index(kKillIndex);
    request.set_file(file);
    request.set_generation(generation);
    request.set_base(base);
    request.set_hold_seconds(&file == &files.back() ? 0 : 60);
    if (!client_->sequence->Restore(&context, request, &response).ok()) return false;
    base = response.base();
  }
  return true;
}

}  // namespace seine::soak
