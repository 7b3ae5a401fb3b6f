// What a gRPC call shows of who makes it.
#ifndef SEINE_SERVICE_TRANSPORT_PRESENTED_H_
#define SEINE_SERVICE_TRANSPORT_PRESENTED_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "service/access/access.h"
#include "service/access/caller.h"
#include "service/core.h"

namespace seine {

// Whence a call comes. On a Unix socket gRPC's name is the connection's descriptor (server.cc), which tells nobody
// anything.
inline std::string PeerName(const std::string& peer) { return absl::StartsWith(peer, "fd:") ? "unix:" : peer; }
inline std::string PeerOf(const grpc::ServerContext& context) { return PeerName(context.peer()); }

inline Presented PresentedBy(const grpc::ServerContext& context) {
  Presented presented;
  presented.peer = PeerOf(context);
  presented.over_unix = absl::StartsWith(presented.peer, "unix");
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  for (auto it = begin; it != end; ++it) presented.authorization.emplace_back(it->second.data(), it->second.size());
  const auto proof = context.auth_context();
  if (proof == nullptr || !proof->IsPeerAuthenticated()) return presented;
  for (const grpc::string_ref& san : proof->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    presented.sans.emplace_back(san.data(), san.size());
  }
  return presented;
}

// Who makes the call, where the server asks; `caller` stays empty where it does not. The role must be at least
// `needed`.
inline absl::Status Admit(Core& core, const grpc::ServerContext& context, Role needed, AdmittedCaller* caller) {
  if (core.access == nullptr) return absl::OkStatus();
  auto found = core.access->Identify(PresentedBy(context));
  if (!found.ok()) return found.status();
  if ((*found)->role < needed) return NotAllowed();
  return caller->Enter(*std::move(found));
}

// Whence a call comes, for the log: "TENANT ipv4:127.0.0.1:40022".
inline std::string PeerInLog(const std::string& peer, const Caller* caller) {
  return caller == nullptr || caller->tenant_name().empty() ? peer : caller->tenant_name() + " " + peer;
}

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_PRESENTED_H_
