// Endpoints, connecting, and gRPC errors as absl::Status.
#include "client/channel/channel.h"

#include <grpc/grpc.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/channel/channel_security.h"
#include "client/convert/convert.h"
#include "profile/io/endpoint.h"

namespace seine::client {

// The path of "unix:///path", "unix:path", or of a path with a slash in it.
namespace {

// `why`: empty: as the endpoint has it.
absl::Status NoServer(const std::string& endpoint, const std::string& why) {
  if (!why.empty()) return absl::UnavailableError(absl::StrCat("no server at ", endpoint, " (", why, ")"));
  const std::string path = SocketPath(endpoint);
  struct stat info;
  const bool missing = !path.empty() && stat(path.c_str(), &info) != 0;
  return absl::UnavailableError(absl::StrCat("no server at ", endpoint,
                                             missing ? " (there is no such socket)" : " (the connection was refused)"));
}

// As service/transport/sockets/address.cc has it.
bool IsOwnFolder(const struct stat& info) {
  return S_ISDIR(info.st_mode) && info.st_uid == getuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string FolderInTmp() { return absl::StrCat("/tmp/seine-", getuid()); }

// Whoever owns the folder of the default address could listen there. Once it is one's own, nobody can take its place:
// what lies in /tmp is moved by its owner alone.
absl::Status CheckFolderInTmp(const std::string& endpoint, const std::string& path) {
  const std::string folder = FolderInTmp();
  struct stat info;
  if (path != folder + "/seine.sock" || lstat(folder.c_str(), &info) != 0 || IsOwnFolder(info)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "nothing is sent to ", endpoint, ": ", folder,
      " is no folder of this user alone; start seined with another --listen, and say where it is in SEINE_SERVER"));
}

}  // namespace

std::string EndpointFromEnvironment() {
  const char* server = std::getenv("SEINE_SERVER");
  return server != nullptr && *server != '\0' ? server : DefaultEndpoint();
}

std::string DefaultEndpoint() {
  const char* folder = std::getenv("XDG_RUNTIME_DIR");
  struct stat info;
  if (folder != nullptr && *folder == '/' && stat(folder, &info) == 0 && IsOwnFolder(info)) {
    return absl::StrCat("unix://", folder, "/seine.sock");
  }
  return absl::StrCat("unix://", FolderInTmp(), "/seine.sock");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectChannel(const std::string& endpoint, const Options& options) {
  const absl::Status valid = CheckEndpoint(endpoint);
  if (!valid.ok()) return valid;
  // gRPC's own end, when the last of its objects goes, would wait for a poller that a large message may have started:
  // up to 10 s (gRPC 1.51). So it is kept for the life of the process.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(options.max_message_bytes, std::numeric_limits<int>::max())));
  arguments.SetMaxSendMessageSize(-1);  // the server's limit counts, and it says so itself
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.wait_for_server) {
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  }
  const std::string path = SocketPath(endpoint);
  if (absl::Status own = CheckFolderInTmp(endpoint, path); !own.ok()) return own;
  const absl::StatusOr<ChannelSecurity> security = SecurityFor(endpoint, options.security);
  if (!security.ok()) return security.status();
  auto channel = MakeChannel(path.empty() ? endpoint : absl::StrCat("unix:", path), *security, arguments);
  const auto failed = [&] { return NoServer(endpoint, path.empty() ? WhyNoConnection(channel, security->tls) : ""); };

  const auto deadline = absl::ToChronoTime(absl::Now() + options.connect_timeout);
  for (;;) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    if (state == GRPC_CHANNEL_SHUTDOWN) return NoServer(endpoint, "");
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !options.wait_for_server) return failed();
    if (!channel->WaitForStateChange(state, deadline)) {
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return failed();
      return absl::UnavailableError(absl::StrCat("no server at ", endpoint, " (no connection within ",
                                                 absl::FormatDuration(options.connect_timeout), ")"));
    }
  }
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return absl::OkStatus();
  v1::Status details;  // unreadable details say less, not something else
  if (!details.ParseFromString(status.error_details())) details.Clear();
  std::string message = status.error_message();
  if (details.details().empty() && status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    message = absl::StrCat("lost the server at ", endpoint, ": ", message);
  } else if (details.details().empty() && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    message = absl::StrCat("no answer from ", endpoint, " in time");
  }
  return MakeError(status.error_code(), message, details);
}

}  // namespace seine::client
