#include "service/transport/reflection/descriptor_answers.h"

#include <google/protobuf/descriptor.pb.h>

#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "service/fields/error.h"
#include "service/transport/message_bytes.h"

namespace seine {

namespace pb = google::protobuf;
using reflection::v1::ServerReflectionRequest;
using reflection::v1::ServerReflectionResponse;

namespace {

void Fail(absl::StatusCode code, const char* what, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(static_cast<int>(code));
  response->mutable_error_response()->set_error_message(what);
}

void ListExtensions(const std::string& type, ServerReflectionResponse* response) {
  const pb::DescriptorPool& pool = *pb::DescriptorPool::generated_pool();
  const pb::Descriptor* const message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return Fail(absl::StatusCode::kNotFound, "this server has no such message", response);
  std::vector<const pb::FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(message->full_name());
  for (const pb::FieldDescriptor* extension : extensions) numbers->add_extension_number(extension->number());
}

}  // namespace

void DescriptorAnswers::Answer(const ServerReflectionRequest& request, ServerReflectionResponse* response) {
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      return ListServices(response->mutable_list_services_response());
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      return ListExtensions(request.all_extension_numbers_of_type(), response);
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      return Fail(absl::StatusCode::kInvalidArgument, "message_request: nothing is asked", response);
    default:
      break;
  }
  const pb::FileDescriptor* const file = FileOf(request);
  if (file == nullptr) return Fail(absl::StatusCode::kNotFound, "this server has no such file or symbol", response);
  sent_.erase(file);  // it may be asked for again
  Add(*file, response->mutable_file_descriptor_response());
}

void DescriptorAnswers::Build() const {
  DescriptorAnswers once(services_);
  for (const char* name : services_) {
    ServerReflectionRequest request;
    ServerReflectionResponse response;
    request.set_file_containing_symbol(name);
    once.Answer(request, &response);
  }
}

absl::Status DescriptorAnswers::Answer(grpc::ByteBuffer* request, grpc::ByteBuffer* answer) {
  if (request->Length() > kMostRequestBytes) {
    return FieldError("TOO_LARGE", "request", absl::StrCat("takes more than ", kMostRequestBytes, " bytes"));
  }
  try {
    ServerReflectionRequest parsed;
    if (auto s = Parse(request, &parsed); !s.ok()) return s;
    ServerReflectionResponse response;
    Answer(parsed, &response);
    return Serialise(response, answer);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

void DescriptorAnswers::ListServices(reflection::v1::ListServiceResponse* list) const {
  for (const char* name : services_) list->add_service()->set_name(name);
}

const pb::FileDescriptor* DescriptorAnswers::FileOf(const ServerReflectionRequest& request) {
  const Pool& pool = *Pool::generated_pool();
  if (request.has_file_by_filename()) return pool.FindFileByName(request.file_by_filename());
  if (request.has_file_containing_symbol()) return pool.FindFileContainingSymbol(request.file_containing_symbol());
  const auto& asked = request.file_containing_extension();
  const pb::Descriptor* const extended = pool.FindMessageTypeByName(asked.containing_type());
  if (extended == nullptr) return nullptr;
  const pb::FieldDescriptor* const extension = pool.FindExtensionByNumber(extended, asked.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

void DescriptorAnswers::Add(const pb::FileDescriptor& file, reflection::v1::FileDescriptorResponse* files) {
  if (!sent_.insert(&file).second) return;
  pb::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(files->add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) Add(*file.dependency(i), files);
}

}  // namespace seine
