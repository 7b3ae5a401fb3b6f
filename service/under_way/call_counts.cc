#include "service/under_way/call_counts.h"

#include <google/protobuf/descriptor.h>

#include <cassert>
#include <string>
#include <vector>

namespace seine {
namespace {

std::vector<CallCounts::Method> ReadMethods() {
  std::vector<CallCounts::Method> all;
  for (const char* name : {"index", "sequence", "retrieval", "eviction", "subspace", "shared_memory", "admin"}) {
    const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(std::string("seine/v1/") +
                                                                                          name + "_service.proto");
    assert(file != nullptr && file->service_count() == 1);
    const auto* service = file->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      all.push_back({std::string(service->full_name()), std::string(method->name()), method->client_streaming(),
                     method->server_streaming()});
    }
  }
  return all;
}

const std::vector<CallCounts::Method>& Methods() {
  static const auto* const kMethods = new std::vector<CallCounts::Method>(ReadMethods());
  return *kMethods;
}

}  // namespace

CallCounts::CallCounts(bool on) {
  if (on) cells_.emplace(size() * kCellsEach);
}

int CallCounts::size() { return static_cast<int>(Methods().size()); }

const CallCounts::Method& CallCounts::MethodOf(int number) { return Methods()[static_cast<size_t>(number)]; }

int CallCounts::decode() {
  static const int kDecode = NumberOf("Decode");
  return kDecode;
}

int CallCounts::NumberOf(const char* method) {
  for (int i = 0; i < size(); ++i) {
    if (MethodOf(i).name == method) return i;
  }
  return kNone;
}

void CallCounts::Ended(int method, absl::StatusCode code, std::chrono::steady_clock::time_point began) {
  if (!cells_ || method == kNone) return;
  const int number = static_cast<int>(code);
  Add(method, kFirstCode + (number >= 0 && number < kCodes ? number : static_cast<int>(absl::StatusCode::kUnknown)));
  const auto took = std::chrono::steady_clock::now() - began;
  Histogram(&*cells_, method * kCellsEach).Add(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
}

HistogramReading CallCounts::times(int method) const {
  return cells_ ? Histogram(&*cells_, method * kCellsEach).Read() : HistogramReading();
}

}  // namespace seine
