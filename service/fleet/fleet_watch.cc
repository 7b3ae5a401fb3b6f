#include "service/fleet/fleet_watch.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/thread_name.h"
#include "profile/io/endpoint.h"
#include "profile/io/file.h"
#include "profile/io/token_file.h"
#include "service/access/tls_files.h"
#include "service/fields/error.h"
#include "service/fields/names.h"

namespace seine {
namespace {

constexpr uint64_t kMostFileBytes = 4 << 20, kMostPemBytes = 1 << 20;
constexpr int kMostAnswerBytes = 1 << 20;
constexpr size_t kMostWatched = 256;  // a connection each
constexpr size_t kMostSaid = 300;     // bytes of an error, as it came
constexpr char kHealth[] = "/grpc.health.v1.Health/Check", kInfo[] = "/seine.v1.AdminService/GetServerInfo";
constexpr auto kTick = std::chrono::milliseconds(50);

absl::Status Wrong(absl::string_view setting, const absl::Status& why) {
  return absl::InvalidArgumentError(absl::StrCat(setting, ": ", why.message()));
}

absl::StatusOr<FleetDescription> ReadDescription(const std::string& path) {
  const absl::StatusOr<File> file = File::Open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::string> text = file->ReadAll(kMostFileBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<FleetDescription> fleet = ParseFleet(*text);
  absl::Status status = fleet.status();
  if (status.ok()) status = CheckId(fleet->fleet, "fleet");
  for (size_t i = 0; status.ok() && i < fleet->nodes.size(); ++i) {
    status = CheckId(fleet->nodes[i].name, absl::StrCat("nodes[", i, "].name"));
    if (status.ok()) status = CheckId(fleet->nodes[i].address, absl::StrCat("nodes[", i, "].address"));
  }
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return fleet;
}

// Changes when the file does.
std::string SignatureOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> token = ReadTokenFile(path);
  absl::Status status = token.status();
  if (status.ok()) status = CheckToken(*token);
  if (!status.ok()) return Wrong("fleet.token_file", status);
  return token;
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  const absl::StatusOr<File> file = File::Open(path);
  absl::StatusOr<std::string> text = file.ok() ? file->ReadAll(kMostPemBytes) : file.status();
  if (!text.ok()) return Wrong("fleet.tls_ca", text.status());
  if (absl::StrContains(*text, "-----BEGIN ")) return text;
  return absl::InvalidArgumentError(absl::StrCat("fleet.tls_ca: ", path, ": is no PEM"));
}

// The last part of gRPC's error, after the last colon: "failed to connect to all addresses; last error: ...: Connection
// refused". Cut before it is made printable, for half a character would make the list no message.
std::string Short(const std::string& said) {
  const std::string last = said.substr(said.rfind(": ") == std::string::npos ? 0 : said.rfind(": ") + 2);
  return last.size() <= kMostSaid ? OneLine(last) : OneLine(last.substr(0, kMostSaid)) + "...";
}

}  // namespace

absl::Status Validate(const FleetOptions& options) {
  if (options.file.empty()) {
    const char* const other = !options.token_file.empty() ? "fleet.token_file"
                              : !options.tls_ca.empty()   ? "fleet.tls_ca"
                                                          : nullptr;
    if (other == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(other, ": there is no fleet to call; set fleet.file"));
  }
  const absl::Status read = ReadDescription(options.file).status();
  if (!read.ok() && !absl::IsNotFound(read)) return Wrong("fleet.file", read);
  if (auto token = ReadToken(options.token_file); !token.ok()) return token.status();
  return options.tls_ca.empty() ? absl::OkStatus() : ReadAuthorities(options.tls_ca).status();
}

// Health and GetServerInfo of one server, at once.
struct FleetWatch::Question {
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    bool OpensWith(absl::string_view bytes) {
      grpc::Slice whole;
      return status.ok() && answer.DumpToSingleSlice(&whole).ok() && whole.size() >= bytes.size() &&
             std::equal(bytes.begin(), bytes.end(), whole.begin());
    }
  };
  FleetNode node;
  std::shared_ptr<grpc::Channel> channel;
  std::string no_info;  // why it is not asked what it holds
  Call health, info;
  int open = 0;  // calls under way

  WatchedServer Answer();
};

WatchedServer FleetWatch::Question::Answer() {
  WatchedServer server;
  server.node = node;
  if (channel == nullptr) {
    server.error = no_info;
    return server;
  }
  const grpc::Status& status = health.status;
  if (health.OpensWith({"\x08\x01", 2})) {
    server.health = v1::SERVER_HEALTH_SERVING;
  } else if (status.ok()) {
    server.health = v1::SERVER_HEALTH_NOT_SERVING;
  } else {
    server.health = v1::SERVER_HEALTH_UNREACHABLE;
    server.error = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED
                       ? absl::StrCat("no answer within ", FleetWatch::kPatience.count(), " s")
                       : Short(status.error_message());
    return server;
  }
  if (!no_info.empty()) {
    server.error = no_info;
    return server;
  }
  grpc::Slice whole;
  auto said = std::make_shared<v1::GetServerInfoResponse>();
  if (info.status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    server.error = "it asks for a credential that this server does not have: set fleet.token_file";
  } else if (!info.status.ok()) {
    server.error = Short(info.status.error_message());
  } else if (!info.answer.DumpToSingleSlice(&whole).ok() ||
             !said->ParseFromArray(whole.begin(), static_cast<int>(whole.size()))) {
    server.error = "what it says of itself is no message of this contract";
  } else {
    said->clear_profiles();
    said->clear_passed_over();
    if (said->draining()) server.health = v1::SERVER_HEALTH_DRAINING;
    server.info = std::move(said);
  }
  return server;
}

// One round of questions; its thread's alone.
class FleetWatch::Round {
 public:
  explicit Round(FleetWatch& watch) : watch_(watch), token_(ReadToken(watch.options_.token_file)) {}
  ~Round() {
    Cancel();  // none is left but where memory ran out
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) {
    }
  }

  void Ask(std::vector<Due> due) {
    std::deque<Due> left(std::make_move_iterator(due.begin()), std::make_move_iterator(due.end()));
    while (!left.empty() || !asked_.empty()) {
      if (watch_.Stops()) {
        left.clear();
        Cancel();
      }
      while (!left.empty() && asked_.size() < kAtOnce) {
        auto owner = std::make_unique<Question>();
        Question* const question = owner.get();
        asked_.emplace(question, std::move(owner));
        Begin(std::move(left.front()), question);
        left.pop_front();
        if (question->open > 0) continue;
        watch_.Publish(question->Answer(), nullptr);
        asked_.erase(question);
      }
      void* tag = nullptr;
      bool ok = false;
      if (asked_.empty() ||
          queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kTick) != grpc::CompletionQueue::GOT_EVENT) {
        continue;
      }
      auto* const question = static_cast<Question*>(tag);
      if (--question->open > 0) continue;
      watch_.Publish(question->Answer(), question->channel);
      asked_.erase(question);
    }
  }

 private:
  void Cancel() {
    for (const auto& [question, owner] : asked_) {
      question->health.context.TryCancel();
      question->info.context.TryCancel();
    }
  }
  void Begin(Due due, Question* question) {
    question->node = std::move(due.node);
    question->channel = std::move(due.channel);
    const std::string& address = question->node.address;
    const bool on_socket = !SocketPath(address).empty(), tls = !on_socket && !watch_.options_.tls_ca.empty();
    if (question->channel == nullptr) {
      auto made = Connect(address, tls);
      if (!made.ok()) {
        question->no_info = std::string(made.status().message());
        return;
      }
      question->channel = *std::move(made);
    }
    if (!token_.ok()) {
      question->no_info = OneLine(token_.status().message());
    } else if (!token_->empty() && !on_socket && !tls && !IsLoopback(address)) {
      question->no_info = "the token of fleet.token_file would travel for all to read: set fleet.tls_ca";
    }
    Start(kHealth, question, &question->health);
    if (!question->no_info.empty()) return;
    if (!token_->empty()) question->info.context.AddMetadata("authorization", absl::StrCat("Bearer ", *token_));
    Start(kInfo, question, &question->info);
  }
  void Start(const char* method, Question* question, Question::Call* call) {
    const grpc::Slice nothing;
    const grpc::ByteBuffer empty(&nothing, 1);
    call->context.set_deadline(std::chrono::system_clock::now() + kPatience);
    call->reader = grpc::GenericStub(question->channel).PrepareUnaryCall(&call->context, method, empty, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->answer, &call->status, question);
    ++question->open;
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& address, bool tls) const {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (tls) {
      auto authorities = ReadAuthorities(watch_.options_.tls_ca);
      if (!authorities.ok()) return authorities.status();
      grpc::SslCredentialsOptions options;
      options.pem_root_certs = *std::move(authorities);
      if (watch_.tls_ != nullptr) {
        const auto own = watch_.tls_->Current();
        options.pem_cert_chain = own->cert;
        options.pem_private_key = own->key;
      }
      credentials = grpc::SslCredentials(options);
    }
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMostAnswerBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const std::string path = SocketPath(address);
    return grpc::CreateCustomChannel(path.empty() ? address : absl::StrCat("unix:", path), credentials, arguments);
  }

  FleetWatch& watch_;
  const absl::StatusOr<std::string> token_;
  std::map<Question*, std::unique_ptr<Question>> asked_;  // whose calls are under way: they outlive the queue
  grpc::CompletionQueue queue_;
};

FleetWatch::FleetWatch(FleetOptions options, std::shared_ptr<TlsFiles> tls)
    : options_(std::move(options)), tls_(std::move(tls)), thread_([this] { Watch(); }) {}

FleetWatch::~FleetWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

absl::StatusOr<FleetDescription> FleetWatch::Describe() {
  const std::lock_guard<std::mutex> lock(reading_);
  const std::string signature = SignatureOf(options_.file);
  if (signature.empty() || signature != read_) fleet_ = ReadDescription(options_.file);
  read_ = signature;
  return fleet_;
}

std::vector<WatchedServer> FleetWatch::Look(const std::vector<FleetNode>& nodes) {
  std::vector<WatchedServer> said;
  const Clock::time_point now = Clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const FleetNode& node : nodes) {
    Watched& watched = watched_[node.name];
    if (watched.said.node.address != node.address) watched = {};  // what another has said
    watched.said.node = node;
    watched.looked = now;
    said.push_back(watched.said);
  }
  wake_.notify_one();
  return said;
}

std::string FleetWatch::InstanceOf(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = watched_.find(name);
  return found == watched_.end() || found->second.said.info == nullptr ? "" : found->second.said.info->instance();
}

bool FleetWatch::Stops() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stops_;
}

// A server that was not reached gets another connection next time, with what the files hold then.
void FleetWatch::Publish(WatchedServer server, std::shared_ptr<grpc::Channel> channel) {
  server.asked = Clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = watched_.find(server.node.name);
  if (found == watched_.end() || found->second.said.node.address != server.node.address) return;
  const bool reached = server.health != v1::SERVER_HEALTH_UNREACHABLE;
  found->second.channel = reached ? std::move(channel) : nullptr;
  found->second.said = std::move(server);
}

std::vector<FleetWatch::Due> FleetWatch::TakeDue(Clock::time_point now) {
  std::erase_if(watched_, [&](const auto& one) { return now - one.second.looked > kLooked; });
  while (watched_.size() > kMostWatched) {
    watched_.erase(std::min_element(watched_.begin(), watched_.end(),
                                    [](const auto& a, const auto& b) { return a.second.looked < b.second.looked; }));
  }
  std::vector<Due> due;
  for (const auto& [name, watched] : watched_) {
    const bool never = watched.said.asked == Clock::time_point();
    if (never || now - watched.said.asked >= kEvery) due.push_back({watched.said.node, watched.channel});
  }
  return due;
}

void FleetWatch::Watch() {
  NameThread("fleet");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops_) {
    bool asked = false;
    try {
      if (std::vector<Due> due = TakeDue(Clock::now()); !due.empty()) {
        lock.unlock();
        Round(*this).Ask(std::move(due));
        asked = true;
      }
    } catch (const std::bad_alloc&) {  // what was not asked is due again
    }
    if (!lock.owns_lock()) lock.lock();
    if (asked || stops_) continue;
    if (watched_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(200));
    }
  }
}

}  // namespace seine
