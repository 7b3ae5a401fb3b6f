// Loads libggml-seine-remote.so, which holds the client and needs gRPC: a plug-in without a server is spared both.
#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/remote/session.h"

namespace seine::llama {

namespace {

constexpr char kLibrary[] = "libggml-seine-remote.so";

absl::StatusOr<OpenSessionFn*> Load() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&OpenSession), &info) == 0) {
    return absl::InternalError("SEINE_ENDPOINT: the plug-in's own path cannot be found");
  }
  const std::string path = (std::filesystem::path(info.dli_fname).parent_path() / kLibrary).string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : dlsym(library, kOpenSessionSymbol);
  if (symbol == nullptr) return absl::NotFoundError(absl::StrCat("SEINE_ENDPOINT needs ", kLibrary, ": ", dlerror()));
  return reinterpret_cast<OpenSessionFn*>(symbol);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionConfig& config) {
  static const auto* const open = new absl::StatusOr<OpenSessionFn*>(Load());
  if (!open->ok()) return open->status();
  std::unique_ptr<Session> session;
  if (absl::Status status = (**open)(config, &session); !status.ok()) return status;
  return session;
}

}  // namespace seine::llama
