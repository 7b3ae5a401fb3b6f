#include "client/cli/live/ask.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/methods.h"
#include "profile/io/json.h"

namespace seine::cli {

int64_t Int(const Json& value) {
  return value.is_string() ? std::strtoll(value.get<std::string>().c_str(), nullptr, 10) : value.get<int64_t>();
}

absl::StatusOr<Json> Ask(client::Client* client, const std::string& method, const Json& request) {
  const absl::StatusOr<client::Method> found = client::FindMethod(method);
  if (!found.ok()) return found.status();
  const std::unique_ptr<client::JsonCall> call = client->OpenCall(*found);
  if (auto s = call->Write(request.dump()); !s.ok()) return call->Finish().ok() ? s : call->Finish();
  call->WritesDone();
  const absl::StatusOr<std::optional<std::string>> answer = call->Read();
  if (auto s = call->Finish(); !s.ok()) return s;
  if (!answer.ok()) return answer.status();
  if (!answer->has_value()) return absl::InternalError(absl::StrCat(method, ": the server sent no answer"));
  const absl::StatusOr<nlohmann::json> parsed = ParseJson(**answer);
  if (!parsed.ok()) return absl::InternalError(absl::StrCat(method, ": the answer ", parsed.status().message()));
  return Json(*parsed);
}

}  // namespace seine::cli
