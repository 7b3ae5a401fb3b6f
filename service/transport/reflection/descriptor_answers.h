// Answers of server reflection, from the protos that are linked into this program.
#ifndef SEINE_SERVICE_TRANSPORT_REFLECTION_DESCRIPTOR_ANSWERS_H_
#define SEINE_SERVICE_TRANSPORT_REFLECTION_DESCRIPTOR_ANSWERS_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "seine/reflection/v1/reflection.pb.h"

namespace seine {

// Answers the requests of one stream. Not thread-safe.
class DescriptorAnswers {
 public:
  // `services`: full names of what the server has; the list must outlive this.
  explicit DescriptorAnswers(const std::vector<const char*>& services) : services_(services) {}
  // Has protobuf build the descriptors of all of them: it does so when they are first asked for, and does not survive
  // where it finds no memory for that.
  void Build() const;

  // What cannot be found, or is no question, is told in `error_response`. The answer holds the file that was asked for,
  // and those it depends on that the stream has not been sent yet. They take some 150 KB together.
  void Answer(const reflection::v1::ServerReflectionRequest& request,
              reflection::v1::ServerReflectionResponse* response);

  static constexpr size_t kMostRequestBytes = 4096;
  // The same as bytes of the wire; lets go of those of the request. INVALID_ARGUMENT: they are too many, or no request.
  // RESOURCE_EXHAUSTED: the server has no memory. What the stream has been sent is not known then: it must end.
  absl::Status Answer(grpc::ByteBuffer* request, grpc::ByteBuffer* answer);

 private:
  using Pool = google::protobuf::DescriptorPool;
  void ListServices(reflection::v1::ListServiceResponse* list) const;
  // Null: there is no such file.
  static const google::protobuf::FileDescriptor* FileOf(const reflection::v1::ServerReflectionRequest& request);
  void Add(const google::protobuf::FileDescriptor& file, reflection::v1::FileDescriptorResponse* files);

  const std::vector<const char*>& services_;
  std::unordered_set<const google::protobuf::FileDescriptor*> sent_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_REFLECTION_DESCRIPTOR_ANSWERS_H_
