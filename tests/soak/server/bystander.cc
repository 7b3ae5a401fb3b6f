#include "tests/soak/server/bystander.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "index/counts/histogram.h"
#include "tests/service/metrics/http_client.h"
#include "tests/soak/server/made_requests.h"
#include "tests/soak/server/raw_connection.h"

namespace seine::soak {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kCalmPrompt = 8192;
constexpr char kCalmIndex[] = "bystander", kCalmId[] = "calm";
constexpr uint8_t kCalmMark = 0xB5;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

v1::DecodeRequest StepOf(const v1::SequenceHandle& handle) {
  v1::DecodeRequest step;
  for (uint32_t i = 0; i < 2; ++i) *step.add_items() = Query(handle, static_cast<int>(i % kLayers), i + 1);
  step.mutable_selector()->set_top_k(64);
  return step;
}

std::string Plain(v1::DecodeResponse response) {
  response.clear_server_us();
  return response.SerializeAsString();
}

}  // namespace

double Latencies::Quantile(double q) const {
  if (all.empty()) return 0;
  std::vector<double> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

double Latencies::Max() const { return all.empty() ? 0 : *std::max_element(all.begin(), all.end()); }

Bystander::Bystander(const std::string& endpoint, std::string metrics)
    : endpoint_(endpoint),
      metrics_(std::move(metrics)),
      decoding_(std::make_unique<Client>(endpoint)),
      probing_(std::make_unique<Client>(endpoint)) {
  probing_->channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
  Client& client = *decoding_;
  const v1::SequenceHandle handle = Prompt(client, kCalmIndex, kCalmId, kCalmPrompt, kCalmMark);
  if (handle.id().empty()) return;
  grpc::ClientContext context;
  auto stream = client.retrieval->Decode(&context);
  v1::DecodeResponse response;
  const v1::DecodeRequest step = StepOf(handle);
  for (int i = 0; i < 200; ++i) {  // the first ones may wait for codes that are made anew
    if (!stream->Write(step) || !stream->Read(&response) || response.has_status()) return;
  }
  expected_ = Plain(response);
  stream->WritesDone();
  ok_ = stream->Finish().ok();
}

void Bystander::Start() {
  stop_ = false;
  steps_.all.clear();
  health_.all.clear();
  connections_.all.clear();
  probes_.all.clear();
  decode_ = std::thread([this] { Decode(); });
  probe_ = std::thread([this] { Probe(); });
}

void Bystander::Stop() {
  if (stop_.exchange(true) || !decode_.joinable()) return;
  decode_.join();
  probe_.join();
}

void Bystander::Failed(const std::string& what) {
  ++failures_;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (first_failure_.empty()) first_failure_ = what;
}

Bystander::~Bystander() { Stop(); }

void Bystander::Report(Result* result) const {
  auto& figures = result->figures;
  figures["step_p50_ms"] = steps_.Quantile(.5);
  figures["step_p99_ms"] = steps_.Quantile(.99);
  figures["step_max_ms"] = steps_.Max();
  figures["health_p99_ms"] = health_.Quantile(.99);
  figures["connect_p99_ms"] = connections_.Quantile(.99);
  if (!probes_.all.empty()) figures["livez_p99_ms"] = probes_.Quantile(.99);
  if (std::max({steps_.Max(), health_.Max(), connections_.Max(), probes_.Max()}) > kHangMs) ++result->hangs;
  result->breaks += wrong_answers() + failures();
  result->ops += static_cast<int64_t>(steps_.all.size() + health_.all.size());
  if (!first_failure_.empty()) result->Note("bystander: " + first_failure_);
  if (wrong_ > 0) result->Note(absl::StrCat("bystander: ", wrong_answers(), " wrong answers"));
}

void Bystander::Decode() {
  Client& client = *decoding_;
  v1::SequenceHandle handle;
  handle.set_index(kCalmIndex);
  handle.set_id(kCalmId);
  const v1::DecodeRequest step = StepOf(handle);
  v1::DecodeResponse response;
  while (!stop_) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    auto stream = client.retrieval->Decode(&context);
    bool open = true;
    while (open && !stop_) {
      const auto begin = Clock::now();
      open = stream->Write(step) && stream->Read(&response);
      if (!open) break;
      steps_.all.push_back(Since(begin));
      if (response.has_status()) {
        Failed("step: " + response.status().message());
      } else if (Plain(response) != expected_) {
        ++wrong_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // an engine's own work
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    if (!status.ok()) Failed("Decode: " + status.error_message());
  }
}

void Bystander::Probe() {
  Client& client = *probing_;
  v1::GetServerInfoRequest request;
  v1::GetServerInfoResponse response;
  while (!stop_) {
    {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
      const auto begin = Clock::now();
      const grpc::Status status = client.admin->GetServerInfo(&context, request, &response);
      health_.all.push_back(Since(begin));
      if (!status.ok()) Failed("GetServerInfo: " + status.error_message());
    }
    const auto begin = Clock::now();
    RawConnection connection(endpoint_);
    if (connection.Open() && connection.Handshake(10000)) {
      connections_.all.push_back(Since(begin));
    } else if (!expects_refusals) {
      connections_.all.push_back(Since(begin));
      Failed("a new connection");
    }
    if (!metrics_.empty()) {
      const auto probed = Clock::now();
      if (test::Http(metrics_, "GET", "/livez").code != 200) Failed("/livez");
      probes_.all.push_back(Since(probed));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace seine::soak
