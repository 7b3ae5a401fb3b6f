// Methods, their descriptions, and JSON, from protobuf's descriptors.
#include "client/methods.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "profile/io/json.h"
#include "profile/spelling.h"
#include "proto/fields/find_field.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/eviction_service.pb.h"
#include "seine/v1/index_service.pb.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/sequence_service.pb.h"
#include "seine/v1/shared_memory_service.pb.h"
#include "seine/v1/subspace_service.pb.h"

namespace seine::client {
namespace {

namespace pb = google::protobuf;

constexpr char kTypePrefix[] = "type.googleapis.com/";

// A message of each file that declares services: a new service's file is one line.
std::vector<const pb::FileDescriptor*> ServiceFiles() {
  return {v1::CreateIndexRequest::descriptor()->file(), v1::CreateSequenceRequest::descriptor()->file(),
          v1::RetrieveRequest::descriptor()->file(),    v1::EvictRequest::descriptor()->file(),
          v1::GetBasisRequest::descriptor()->file(),    v1::GetServerInfoRequest::descriptor()->file(),
          v1::OpenChannelRequest::descriptor()->file()};
}

std::vector<Method> ReadMethods() {
  std::vector<Method> methods;
  for (const pb::FileDescriptor* file : ServiceFiles()) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const pb::MethodDescriptor& method = *file->service(s)->method(m);
        methods.push_back({absl::StrCat(method.service()->full_name(), "/", method.name()),
                           method.input_type()->full_name(), method.output_type()->full_name(),
                           method.client_streaming(), method.server_streaming()});
      }
    }
  }
  return methods;
}

const pb::Descriptor& DescriptorOf(const std::string& message) {
  return *pb::DescriptorPool::generated_pool()->FindMessageTypeByName(message);
}

// Finds the types of errors' details, which travel under google.rpc's names, in status.proto, which is wire-identical.
class Resolver final : public pb::util::TypeResolver {
 public:
  Resolver() : generated_(pb::util::NewTypeResolverForDescriptorPool("type.googleapis.com", Pool())) {}
  pb::util::Status ResolveMessageType(const std::string& url, pb::Type* type) override {
    return generated_->ResolveMessageType(absl::StrReplaceAll(url, {{"/google.rpc.", "/seine.v1."}}), type);
  }
  pb::util::Status ResolveEnumType(const std::string& url, pb::Enum* type) override {
    return generated_->ResolveEnumType(url, type);
  }

 private:
  static const pb::DescriptorPool* Pool() { return pb::DescriptorPool::generated_pool(); }
  const std::unique_ptr<pb::util::TypeResolver> generated_;
};

// Protobuf would say only that a field cannot be found. Well-known types have JSON of their own and are left to it.
absl::Status CheckFields(const pb::Descriptor& message, const nlohmann::json& json, const std::string& path) {
  if (!json.is_object() || message.file()->package() == "google.protobuf") return absl::OkStatus();
  for (const auto& [name, value] : json.items()) {
    const pb::FieldDescriptor* field = FindField(message, name);
    if (field == nullptr) field = message.FindFieldByCamelcaseName(name);
    if (field == nullptr) {
      std::vector<std::string> known;
      for (int i = 0; i < message.field_count(); ++i) known.push_back(message.field(i)->name());
      const std::string nearest = NearestWord(name, known);
      return absl::InvalidArgumentError(
          absl::StrCat(path, path.empty() ? "" : ": ", message.name(), " has no field ", ShownJson(name),
                       nearest.empty() ? absl::StrCat("; there are ", absl::StrJoin(known, ", "))
                                       : absl::StrCat("; did you mean ", nearest, "?")));
    }
    if (field->message_type() == nullptr || field->is_map()) continue;
    const std::string inner = absl::StrCat(path, path.empty() ? "" : ".", name);
    const bool list = field->is_repeated() && value.is_array();
    for (size_t i = 0; i < (list ? value.size() : 1); ++i) {
      const absl::Status status =
          CheckFields(*field->message_type(), list ? value[i] : value, list ? absl::StrCat(inner, "[", i, "]") : inner);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<Method>& Methods() {
  static const auto* const methods = new std::vector<Method>(ReadMethods());
  return *methods;
}

absl::StatusOr<Method> FindMethod(absl::string_view name) {
  absl::ConsumePrefix(&name, "/");
  const std::string wanted = absl::StrReplaceAll(name, {{"/", "."}});
  std::vector<Method> found;
  std::vector<std::string> known;
  for (const Method& method : Methods()) {
    const std::string dotted = absl::StrReplaceAll(method.name, {{"/", "."}});
    if (dotted == wanted || absl::EndsWith(dotted, "." + wanted)) found.push_back(method);
    known.push_back(absl::StrContains(wanted, ".") ? method.name : method.name.substr(method.name.find('/') + 1));
  }
  if (found.size() == 1) return found.front();
  if (!found.empty()) {
    const auto append = [](std::string* out, const Method& method) { absl::StrAppend(out, method.name); };
    return absl::InvalidArgumentError(
        absl::StrCat("several methods are called ", name, ": ", absl::StrJoin(found, ", ", append)));
  }
  const std::string nearest = NearestWord(name, known);
  return absl::NotFoundError(
      absl::StrCat("unknown method ", name, nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

std::vector<std::string> DescribeMessage(const std::string& message) {
  std::vector<std::string> out;
  std::vector<const pb::Descriptor*> open = {&DescriptorOf(message)};
  std::vector<const pb::EnumDescriptor*> enums;
  for (size_t next = 0; next < open.size(); ++next) {
    out.push_back(open[next]->DebugString());
    for (int i = 0; i < open[next]->field_count(); ++i) {
      const pb::FieldDescriptor& field = *open[next]->field(i);
      const pb::Descriptor* const inner = field.message_type();
      const bool ours = inner != nullptr && inner->file()->package() != "google.protobuf" && !field.is_map();
      if (ours && std::find(open.begin(), open.end(), inner) == open.end()) open.push_back(inner);
      const pb::EnumDescriptor* const words = field.enum_type();
      if (words != nullptr && std::find(enums.begin(), enums.end(), words) == enums.end()) enums.push_back(words);
    }
  }
  for (const pb::EnumDescriptor* words : enums) out.push_back(words->DebugString());
  return out;
}

absl::StatusOr<std::string> BytesOfJson(const std::string& message, absl::string_view json) {
  const absl::StatusOr<nlohmann::json> parsed = ParseJson(json);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("the request ", parsed.status().message()));
  if (!parsed->is_object()) return absl::InvalidArgumentError("the request must be a JSON object");
  absl::Status status = CheckFields(DescriptorOf(message), *parsed, "");
  if (!status.ok()) return status;
  Resolver resolver;
  std::string bytes;
  const pb::util::Status read =
      pb::util::JsonToBinaryString(&resolver, kTypePrefix + message, {json.data(), json.size()}, &bytes);
  if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat("the request: ", read.message().ToString()));
  return bytes;
}

absl::StatusOr<std::string> JsonOfBytes(const std::string& message, const std::string& bytes, bool indented) {
  Resolver resolver;
  pb::util::JsonPrintOptions options;
  options.add_whitespace = indented;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const pb::util::Status read = pb::util::BinaryToJsonString(&resolver, kTypePrefix + message, bytes, &json, options);
  if (!read.ok()) {
    return absl::InternalError(absl::StrCat("the answer is no ", message, ": ", read.message().ToString()));
  }
  return json;
}

}  // namespace seine::client
