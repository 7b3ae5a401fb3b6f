// Every field of every call wrong once: the right code, the field named, and nothing changed on the server.
#ifndef SEINE_TESTS_SERVICE_ERRORS_ERRORS_FIXTURE_H_
#define SEINE_TESTS_SERVICE_ERRORS_ERRORS_FIXTURE_H_

#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/service/fixture.h"

namespace seine::test {

// A server with three indexes, and cases that its tests collect and then run together.
class ErrorsTest : public ServerTest {
 protected:
  // What a call answered, wherever the answer stands: in the trailer, or inside a message.
  struct Outcome {
    grpc::StatusCode code = grpc::StatusCode::OK;
    std::string message;
    Details details;
  };
  struct Case {
    std::string name;
    grpc::StatusCode code;
    std::string field;
    std::function<Outcome()> run;
    const google::protobuf::Descriptor* request = nullptr;  // that the field is a path of
  };

  static Outcome FromCall(const grpc::Status& status);
  static Outcome FromAnswer(const v1::Status& status);

  void SetUp() override;

  v1::AppendItem WithValues(int layer, int64_t position, int64_t tokens);

  // A case of a unary call: `spoil` makes one field of the right request wrong.
  template <typename Stub, typename Request, typename Response>
  void Add(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), Request request,
           const std::string& what, grpc::StatusCode code, const std::string& field,
           std::function<void(Request*)> spoil) {
    spoil(&request);
    cases_.push_back({Request::descriptor()->name() + ": " + what, code, field,
                      [&stub, method, request] {
                        Response response;
                        return FromCall(Call(stub, method, request, &response));
                      },
                      Request::descriptor()});
  }

  // A case of a handle: each of its parts wrong.
  template <typename Stub, typename Request, typename Response>
  void AddHandle(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, const std::string& field,
                 std::function<v1::SequenceHandle*(Request*)> handle) {
    Add<Stub, Request, Response>(stub, method, request, "no index", grpc::StatusCode::NOT_FOUND, field + ".index",
                                 [=](Request* r) { handle(r)->clear_index(); });
    Add<Stub, Request, Response>(stub, method, request, "unknown index", grpc::StatusCode::NOT_FOUND, field + ".index",
                                 [=](Request* r) { handle(r)->set_index("nowhere"); });
    Add<Stub, Request, Response>(stub, method, request, "no id", grpc::StatusCode::INVALID_ARGUMENT, field + ".id",
                                 [=](Request* r) { handle(r)->clear_id(); });
    Add<Stub, Request, Response>(stub, method, request, "unknown id", grpc::StatusCode::NOT_FOUND, field,
                                 [=](Request* r) { handle(r)->set_id("nobody"); });
    Add<Stub, Request, Response>(stub, method, request, "another generation", grpc::StatusCode::FAILED_PRECONDITION,
                                 field, [=](Request* r) { handle(r)->set_generation(handle(r)->generation() + 1000); });
    Add<Stub, Request, Response>(stub, method, request, "stale", grpc::StatusCode::FAILED_PRECONDITION, field,
                                 [=, this](Request* r) { *handle(r) = stale_; });
  }

  // Runs every case; all of them together leave the server as it was.
  void RunAll(size_t at_least);

  v1::SequenceHandle keys_, both_, none_, stale_;
  std::vector<Case> cases_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_ERRORS_ERRORS_FIXTURE_H_
