// Seine in the process that calls it: a core of its own, without a server. Calls run on the caller's thread, and on the
// backend's.
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/convert.h"
#include "client/fork.h"
#include "engines/python/connection.h"
#include "engines/python/errors.h"
#include "kernels/backend.h"
#include "kernels/stop.h"
#include "service/calls/calls.h"
#include "service/fields/error.h"
#include "service/profiles.h"
#include "service/snapshots/files/snapshot_folder.h"
#include "service/transport/rpc_methods.h"

namespace seine::python {
namespace {

constexpr char kInProcess[] = "in process";
// No message travels, so this only bounds an answer that would not fit into one of protobuf's fields.
constexpr int64_t kMaxAnswerBytes = (int64_t{1} << 31) - 1;

StopToken::Clock::time_point DeadlineIn(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return StopToken::Clock::time_point::max();
  return StopToken::Clock::now() + absl::ToChronoNanoseconds(timeout);
}

// Counts a call, and gives its status as a client has it.
absl::Status Ended(Core& core, const absl::Status& status) {
  core.calls.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) core.errors.fetch_add(1, std::memory_order_relaxed);
  return AsClientHasIt(status);
}

client::Retained AsClientHasIt(Retained retained, client::RetainedReport report) {
  return {.report = report,
          .evictions_before = retained.evictions_before,
          .evictions = retained.evictions,
          .num_tokens = retained.num_tokens,
          .counts = std::move(retained.counts),
          .dropped = std::move(retained.dropped),
          .kept = std::move(retained.kept)};
}

// A step is taken where its answer is read, out of messages that are never written as bytes.
class InProcessStream final : public client::DecodeStream {
 public:
  InProcessStream(std::shared_ptr<Core> core, absl::Duration step_timeout)
      : core_(std::move(core)), session_(*core_), step_timeout_(step_timeout) {}

  absl::Status Write(const client::DecodeStep& step) override { return client::ToProto(step, &request_); }

  absl::Status Read(client::DecodeAnswer* answer) override {
    absl::Status refused;
    {
      const StopToken token(DeadlineIn(step_timeout_));
      const StopScope scope(&token);
      try {
        session_.Step(request_, &response_, [] {});
      } catch (const std::bad_alloc&) {
        refused = NoMemory();
      }
    }
    if (!refused.ok()) {
      response_.Clear();
      response_.set_step(request_.step());
      seine::ToProto(refused, response_.mutable_status());
    }
    core_->calls.fetch_add(1, std::memory_order_relaxed);
    if (response_.has_status()) core_->errors.fetch_add(1, std::memory_order_relaxed);
    return client::FromProto(response_, answer);
  }

  absl::Status Finish() override { return absl::OkStatus(); }
  // None of these carries it: a step is a call. One that waits for nobody is nearest.
  client::Transport transport() const override { return client::Transport::kPolling; }
  const std::string& fallback() const override { return fallback_; }

 private:
  const std::shared_ptr<Core> core_;
  DecodeSession session_;
  const absl::Duration step_timeout_;
  const std::string fallback_;
  v1::DecodeRequest request_;
  v1::DecodeResponse response_;
};

TensorBytes TensorBytesOf(const client::ConstTensor& tensor, size_t bytes) {
  return {static_cast<v1::DType>(tensor.dtype),
          {tensor.shape.begin(), tensor.shape.size()},
          {static_cast<const char*>(tensor.data), bytes}};
}

class InProcess final : public Connection {
 public:
  explicit InProcess(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::string& endpoint() const override { return endpoint_; }
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }

  absl::Status Call(const client::Method& method, const google::protobuf::Message& request,
                    google::protobuf::Message* response, absl::Duration timeout) override {
    for (const RpcMethod& known : RpcMethods()) {
      if (absl::StrCat(known.service, "/", known.name) != method.name) continue;
      const StopToken token(DeadlineIn(timeout));
      const StopScope scope(&token);
      return Ended(*core_, known.call(*core_, request, response));
    }
    return absl::UnimplementedError(absl::StrCat(method.name, " is not answered in process"));
  }

  absl::StatusOr<client::AppendTotals> Append(const client::AppendItem& item, absl::Duration timeout) override {
    size_t key_bytes = 0, value_bytes = 0, query_bytes = 0;
    const bool with_values = !client::IsAbsent(item.values), with_queries = !client::IsAbsent(item.queries);
    absl::Status status = client::CheckTensor("keys", item.keys, &key_bytes);
    if (with_values) status.Update(client::CheckTensor("values", item.values, &value_bytes));
    if (with_queries) status.Update(client::CheckTensor("queries", item.queries, &query_bytes));
    if (!status.ok()) return status;
    AppendedTensors tensors;
    tensors.keys = TensorBytesOf(item.keys, key_bytes);
    if (with_values) tensors.values = TensorBytesOf(item.values, value_bytes);
    if (with_queries) tensors.queries = TensorBytesOf(item.queries, query_bytes);
    tensors.report = static_cast<RetainedReport>(item.report);
    v1::SequenceHandle handle;
    client::ToProto(item.sequence, &handle);
    const StopToken token(DeadlineIn(timeout));
    const StopScope scope(&token);
    Retained retained;
    try {
      status = AppendTensors(*core_, handle, item.layer, item.position, tensors, "item", &retained).status();
    } catch (const std::bad_alloc&) {
      status = NoMemory();
    }
    status = Ended(*core_, status);
    if (!status.ok()) return status;
    client::AppendTotals totals = {.pieces = 1, .tokens = item.keys.shape[0]};
    if (item.report != client::RetainedReport::kNone) {
      totals.retained.push_back({item.sequence, item.layer, AsClientHasIt(std::move(retained), item.report)});
    }
    return totals;
  }

  absl::StatusOr<Opened> OpenStream(absl::Duration step_timeout, const std::string& transport) override {
    if (transport != "auto" && transport != kInProcess) {
      return absl::InvalidArgumentError(absl::StrCat("transport: must be auto or ", kInProcess, ", not ", transport));
    }
    return Opened{client::OfThisProcess(std::make_unique<InProcessStream>(core_, step_timeout)), kInProcess};
  }

  absl::StatusOr<std::string> AddProfile(const std::string& path) override {
    return core_->options.profiles->Add(path);
  }

 private:
  const std::string endpoint_ = kInProcess;
  const std::shared_ptr<Core> core_;
};

absl::StatusOr<std::shared_ptr<Profiles>> OpenProfiles(const std::vector<std::string>& paths) {
  auto profiles = std::make_shared<Profiles>();
  std::string folder;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) continue;
    if (!std::exchange(folder, path).empty()) return absl::InvalidArgumentError("profiles: more than one folder");
    auto opened = Profiles::Open(path);
    if (!opened.ok()) return absl::InvalidArgumentError(absl::StrCat("profiles: ", opened.status().message()));
    profiles = *std::move(opened);
  }
  for (const std::string& path : paths) {
    if (path == folder) continue;
    auto name = profiles->Add(path);
    if (!name.ok()) return absl::InvalidArgumentError(absl::StrCat("profiles: ", name.status().message()));
  }
  return profiles;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> OpenInProcess(const InProcessOptions& in) {
  CoreOptions options;
  options.backend = in.backend;
  options.threads = in.threads;
  options.workers = 1;  // calls run on their own threads
  options.memory_limit_bytes = in.memory_limit_bytes;
  options.max_message_bytes = kMaxAnswerBytes;
  auto profiles = OpenProfiles(in.profiles);
  if (!profiles.ok()) return profiles.status();
  options.profiles = *std::move(profiles);
  try {
    std::string why;
    std::unique_ptr<Backend> backend = MakeBackend(in.backend, in.threads, &why);
    if (backend == nullptr) return absl::FailedPreconditionError(absl::StrCat("backend: ", why));
    auto core = std::make_shared<Core>(options, std::move(backend));
    core->address = kInProcess;
    core->snapshots = SnapshotFolder::Anywhere();
    core->why_cpu = std::move(why);
    return std::make_shared<InProcess>(std::move(core));
  } catch (const std::system_error& error) {  // threads
    return absl::ResourceExhaustedError(absl::StrCat("threads: the system has none for the index: ", error.what()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the system has no memory for the index");
  }
}

}  // namespace seine::python
