// What a server's core starts with. Plain values.
#ifndef SEINE_SERVICE_CORE_OPTIONS_H_
#define SEINE_SERVICE_CORE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "index/quality/quality_options.h"
#include "service/profiles.h"

namespace seine {

struct CoreOptions {
  std::string backend = "auto";  // kernels/backend.h, MakeBackend
  int threads = 0;               // of the backend; 0: one per core
  int workers = 4;               // heavy calls at once
  int queue_capacity = 256;
  int64_t memory_limit_bytes = 0;                 // 0: none
  int64_t device_memory_limit_bytes = 0;          // 0: none; of codes in a device's own memory
  int64_t max_message_bytes = int64_t{64} << 20;  // of a request or an answer
  int64_t in_flight_limit_bytes = 0;              // of requests and answers under way; 0: four of the largest
  int channels = 16;                              // same-host channels at once; 0: none are made
  std::chrono::microseconds channel_spin{150};    // a channel looks for the next step, before it sleeps
  std::chrono::milliseconds unread_for{10'000};   // an answer may be, until its client is cut off
  std::chrono::milliseconds stuck_for{10'000};    // all workers may be at one task, until health says so
  // The process is the server's alone, so that what it holds beyond ConstantBytes and what is stored is under way.
  bool guard_memory = false;
  bool count = true;           // what calls and stages take (metrics)
  QualityOptions quality;      // live quality; needs `count`
  double expected_recall = 0;  // what the operator expects of live quality, for monitors; 0: not stated
  std::shared_ptr<Profiles> profiles = std::make_shared<Profiles>();
};

}  // namespace seine

#endif  // SEINE_SERVICE_CORE_OPTIONS_H_
