#include "client/fleet/ask.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "client/methods.h"
#include "profile/io/json.h"

namespace seine::client {

absl::StatusOr<nlohmann::json> Ask(Client* client, const std::string& method, const nlohmann::json& request) {
  const absl::StatusOr<Method> found = FindMethod(method);
  if (!found.ok()) return found.status();
  const std::unique_ptr<JsonCall> call = client->OpenCall(*found);
  if (absl::Status s = call->Write(request.dump()); !s.ok()) {
    const absl::Status finished = call->Finish();
    return finished.ok() ? s : finished;
  }
  call->WritesDone();
  const absl::StatusOr<std::optional<std::string>> answer = call->Read();
  if (absl::Status s = call->Finish(); !s.ok()) return s;
  if (!answer.ok()) return answer.status();
  if (!answer->has_value()) return absl::InternalError(absl::StrCat(method, ": the server sent no answer"));
  absl::StatusOr<nlohmann::json> parsed = ParseJson(**answer);
  if (!parsed.ok()) return absl::InternalError(absl::StrCat(method, ": the answer ", parsed.status().message()));
  return parsed;
}

}  // namespace seine::client
