// The methods of the wire contract by name, and their messages as protobuf's JSON: fields by the protos' names, bytes
// in base64, 64-bit numbers as strings. All of it comes from the descriptors of the generated code, so that a new
// method needs no line here. Thread-safe.
#ifndef SEINE_CLIENT_METHODS_H_
#define SEINE_CLIENT_METHODS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace seine::client {

struct Method {
  std::string name;               // "seine.v1.RetrievalService/Retrieve"
  std::string request, response;  // messages: "seine.v1.RetrieveRequest"
  bool streams_requests = false;
  bool streams_responses = false;
};

// In the order of the protos.
const std::vector<Method>& Methods();

// `name`: the whole name, or its end after a / or a dot ("Retrieve", "RetrievalService/Retrieve"). NOT_FOUND: there is
// none, with the nearest; INVALID_ARGUMENT: there are several.
absl::StatusOr<Method> FindMethod(absl::string_view name);

// A message and all messages and enums that it holds, each as the protos declare it.
std::vector<std::string> DescribeMessage(const std::string& message);

// The bytes of `message` that a JSON text holds. INVALID_ARGUMENT: it is not JSON, has a field that the message does
// not have, or a value that a field does not take; the text says where.
absl::StatusOr<std::string> BytesOfJson(const std::string& message, absl::string_view json);
// Fields without presence are written even if they hold their default. INTERNAL: the bytes are no such message.
absl::StatusOr<std::string> JsonOfBytes(const std::string& message, const std::string& bytes, bool indented);

}  // namespace seine::client

#endif  // SEINE_CLIENT_METHODS_H_
