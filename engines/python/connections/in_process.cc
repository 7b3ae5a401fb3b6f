// Seine in the process that calls it: a core of its own, without a server. Calls run on the caller's thread, and on the
// backend's.
#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel/fork.h"
#include "client/convert/convert.h"
#include "engines/python/connections/connection.h"
#include "engines/python/connections/open_backend.h"
#include "engines/python/values/errors.h"
#include "kernels/backend.h"
#include "kernels/stop.h"
#include "service/calls/calls.h"
#include "service/calls/decode_session.h"
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

client::Retained ValueOf(Retained retained, client::RetainedReport report) {
  return {.report = report,
          .evictions_before = retained.evictions_before,
          .evictions = retained.evictions,
          .num_tokens = retained.num_tokens,
          .counts = std::move(retained.counts),
          .dropped = std::move(retained.dropped),
          .kept = std::move(retained.kept)};
}

absl::StatusOr<TensorBytes> BytesOf(absl::string_view name, const client::ConstTensor& tensor) {
  size_t bytes = 0;
  if (auto s = client::CheckShape(name, tensor, &bytes); !s.ok()) return s;
  TensorBytes out = {static_cast<v1::DType>(tensor.dtype),
                     {tensor.shape.begin(), tensor.shape.size()},
                     {static_cast<const char*>(tensor.data), bytes}};
  out.on_device = tensor.on_device;
  return out;
}

absl::Status GetOptional(absl::string_view name, const client::ConstTensor& tensor, std::optional<TensorBytes>* out) {
  if (client::IsAbsent(tensor)) return absl::OkStatus();
  auto bytes = BytesOf(name, tensor);
  if (bytes.ok()) *out = *bytes;
  return bytes.status();
}

// What an append says, where it lies.
absl::StatusOr<AppendView> ViewOf(const client::AppendItem& item) {
  auto keys = BytesOf("keys", item.keys);
  if (!keys.ok()) return keys.status();
  AppendView view;
  view.handle = {item.sequence.index, item.sequence.id, item.sequence.generation};
  view.layer = item.layer;
  view.position = item.position;
  view.keys = *keys;
  view.report = static_cast<v1::RetainedReport>(item.report);
  absl::Status status = GetOptional("values", item.values, &view.values);
  status.Update(GetOptional("queries", item.queries, &view.queries));
  if (!status.ok()) return status;
  return view;
}

absl::Status GetRoom(absl::string_view name, const std::optional<client::DeviceTensor>& room,
                     std::optional<TensorBytes>* out) {
  if (!room) return absl::OkStatus();
  size_t bytes = 0;
  if (auto s = client::CheckShape(name, {room->data, room->dtype, room->shape, true}, &bytes); !s.ok()) return s;
  TensorBytes there = {static_cast<v1::DType>(room->dtype),
                       {room->shape.begin(), room->shape.size()},
                       {static_cast<const char*>(room->data), bytes}};
  there.on_device = true;
  *out = there;
  return absl::OkStatus();
}

absl::StatusOr<ItemView> ViewOf(const client::RetrieveItem& item) {
  auto queries = BytesOf("queries", item.queries);
  if (!queries.ok()) return queries.status();
  ItemView view;
  view.handle = {item.sequence.index, item.sequence.id, item.sequence.generation};
  view.layer = item.layer;
  view.queries = *queries;
  view.dense_from = item.dense_from;
  absl::Status status = GetOptional("positions", item.positions, &view.positions);
  status.Update(GetRoom("output", item.output, &view.output));
  status.Update(GetRoom("log_sum_exp", item.log_sum_exp, &view.log_sum_exp));
  if (!status.ok()) return status;
  return view;
}

client::SearchMode ModeOf(SearchMode mode) { return static_cast<client::SearchMode>(static_cast<int>(mode) + 1); }
static_assert(static_cast<int>(client::SearchMode::kIndex) == static_cast<int>(SearchMode::kIndex) + 1 &&
              static_cast<int>(client::SearchMode::kGate) == static_cast<int>(SearchMode::kGate) + 1);

template <typename T>
std::vector<T> Padded(const std::vector<std::vector<T>>& rows, const client::Answer& shape, T padding) {
  std::vector<T> out(static_cast<size_t>(shape.num_sets) * shape.width, padding);
  for (size_t s = 0; s < rows.size() && s < static_cast<size_t>(shape.num_sets); ++s) {
    std::copy_n(rows[s].begin(), std::min<size_t>(rows[s].size(), shape.width), out.begin() + s * shape.width);
  }
  return out;
}

client::Answer ValueOf(const AnswerShape& shape, ItemAnswer answer) {
  client::Answer out;
  out.status = AsClientHasIt(answer.status);
  if (!out.status.ok()) return out;
  out.path = ModeOf(answer.path);
  out.num_tokens = answer.num_tokens;
  out.zone_begin = answer.zone_begin;
  out.zone_end = answer.zone_end;
  out.all_returned = answer.all_returned;
  out.codes_stale = answer.codes_stale;
  out.capped = answer.capped;
  out.num_sets = shape.sets;
  out.width = answer.path == SearchMode::kDense ? 0 : shape.width;
  out.positions = Padded(answer.positions, out, -1);
  out.counts.resize(shape.sets);
  for (size_t s = 0; s < answer.positions.size() && s < out.counts.size(); ++s) {
    out.counts[s] = static_cast<int32_t>(answer.positions[s].size());
  }
  if (shape.with_scores) out.scores = Padded(answer.scores, out, 0.0f);
  out.masses = std::move(answer.masses);
  out.dense_positions = std::move(answer.dense_positions);
  return out;
}

client::Attended ValueOf(const AnswerShape& shape, AttendAnswer answer) {
  client::Attended out;
  out.status = AsClientHasIt(answer.status);
  if (!out.status.ok()) return out;
  out.path = ModeOf(answer.path);
  out.num_tokens = answer.num_tokens;
  out.num_q_heads = shape.num_q_heads;
  out.head_dim = shape.head_dim;
  out.prompt_tokens = answer.prompt_tokens;
  out.output = std::move(answer.output);
  out.log_sum_exp = std::move(answer.log_sum_exp);
  out.attended_tokens = answer.attended_tokens;
  out.tail = answer.tail;
  out.codes_stale = answer.codes_stale;
  if (shape.with_positions) out.selected = ValueOf(shape, std::move(answer.selected));
  return out;
}

// Into the values of a client, whose arrays the index's become.
class ValueTaker final : public StepTaker {
 public:
  ValueTaker(const client::DecodeStep& step, client::DecodeAnswer* answer) : step_(step), out_(answer) {
    out_->step = step.step;
    out_->status = absl::OkStatus();
    out_->append_status.assign(step.appends.size(), absl::OkStatus());
    out_->retained.clear();
    out_->answers.clear();
    out_->attended.clear();
    const bool reports = std::any_of(step.appends.begin(), step.appends.end(), [](const client::AppendItem& append) {
      return append.report != client::RetainedReport::kNone;
    });
    if (reports) out_->retained.resize(step.appends.size());
    step.attention ? out_->attended.resize(step.items.size()) : out_->answers.resize(step.items.size());
  }

  int64_t Appended(size_t append, const absl::Status& status, Retained retained) override {
    out_->append_status[append] = AsClientHasIt(status);
    const client::RetainedReport report = step_.appends[append].report;
    if (status.ok() && report != client::RetainedReport::kNone) {
      out_->retained[append] = ValueOf(std::move(retained), report);
    }
    return 0;  // no message is to hold it
  }
  void TakeAnswer(size_t item, const AnswerShape& shape, ItemAnswer answer) override {
    out_->answers[item] = ValueOf(shape, std::move(answer));
  }
  void TakeAnswer(size_t item, const AnswerShape& shape, AttendAnswer answer) override {
    out_->attended[item] = ValueOf(shape, std::move(answer));
  }

 private:
  const client::DecodeStep& step_;
  client::DecodeAnswer* const out_;
};

// A step is taken where it is written, for its tensors lie at the caller's until then.
class InProcessStream final : public client::DecodeStream {
 public:
  InProcessStream(std::shared_ptr<Core> core, absl::Duration step_timeout)
      : core_(std::move(core)), session_(*core_), step_timeout_(step_timeout) {}

  absl::Status Write(const client::DecodeStep& step) override {
    appends_.clear();
    items_.clear();
    for (const client::AppendItem& append : step.appends) {
      auto view = ViewOf(append);
      if (!view.ok()) return view.status();
      appends_.push_back(*view);
    }
    for (const client::RetrieveItem& item : step.items) {
      auto view = ViewOf(item);
      if (!view.ok()) return view.status();
      items_.push_back(*view);
    }
    ValueTaker taker(step, &answer_);
    absl::Status status;
    {
      const StopToken token(DeadlineIn(step_timeout_));
      const StopScope scope(&token);
      const StepView view = {appends_, items_, &step.selector, step.attention ? &*step.attention : nullptr};
      try {
        status = session_.Step(view, &taker, &answer_.server_us);
      } catch (const std::bad_alloc&) {
        status = NoMemory();
      }
    }
    if (!status.ok()) {
      answer_ = client::DecodeAnswer();
      answer_.step = step.step;
      answer_.status = AsClientHasIt(status);
    }
    core_->calls.fetch_add(1, std::memory_order_relaxed);
    if (!status.ok()) core_->errors.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  absl::Status Read(client::DecodeAnswer* answer) override {
    std::swap(*answer, answer_);  // the next answer takes the memory of the one before
    return absl::OkStatus();
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
  std::vector<AppendView> appends_;
  std::vector<ItemView> items_;
  client::DecodeAnswer answer_;
};

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
    const auto view = ViewOf(item);
    if (!view.ok()) return view.status();
    const StopToken token(DeadlineIn(timeout));
    const StopScope scope(&token);
    Retained retained;
    absl::Status status;
    try {
      status = AppendTokens(*core_, *view, "item", kMaxAnswerBytes, &retained).status();
    } catch (const std::bad_alloc&) {
      status = NoMemory();
    }
    status = Ended(*core_, status);
    if (!status.ok()) return status;
    client::AppendTotals totals = {.pieces = 1, .tokens = item.keys.shape[0]};
    if (item.report != client::RetainedReport::kNone) {
      totals.retained.push_back({item.sequence, item.layer, ValueOf(std::move(retained), item.report)});
    }
    return totals;
  }

  absl::StatusOr<Opened> OpenStream(absl::Duration step_timeout, const std::string& transport) override {
    if (transport != "auto" && transport != kInProcess) {
      return absl::InvalidArgumentError(absl::StrCat("transport: must be auto or ", kInProcess, ", not ", transport));
    }
    return Opened{client::OfThisProcess(std::make_unique<InProcessStream>(core_, step_timeout)), kInProcess,
                  core_->backend->attention() != nullptr};
  }

  std::optional<DeviceCopies> device_copies() override {
    DeviceAttention* const device = core_->backend->attention();
    if (device == nullptr) return std::nullopt;
    const DeviceAttention::Copied copied = device->copied();
    return DeviceCopies{copied.to_device, copied.to_host};
  }

  std::string why_cpu() override { return HasCuda() ? core_->why_cpu : std::string(); }

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
    std::unique_ptr<Backend> backend = OpenBackend(in.backend, in.threads, &why);
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
