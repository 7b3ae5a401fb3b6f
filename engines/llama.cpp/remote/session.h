// One sequence on a seined, as one llama.cpp context fills and asks it.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/config/config.h"

namespace seine::llama {

// Settings as settings.h has them.
struct SessionConfig {
  std::string endpoint;
  Geometry geometry;         // of fp16 or bf16
  float scale = 0;           // of logits
  float softcap = 0;         // of logits; 0: none
  std::string profile;       // one of the server's; empty: none
  double beta = 0;           // 0: the code's
  int refine = 0;            // tokens
  int sink = 0, local = 0;   // tokens
  bool tail = true;          //
  double gate = 0;           // share of attention that a layer may lose before the server attends it exactly; 0: any
  int64_t dense_tokens = 0;  // below so many the server attends all
};

// Counts of all that was sent since the session was opened.
struct SessionCounts {
  int64_t steps = 0, bytes = 0;  // bytes: of keys, values and queries
  int64_t waiting_ns = 0;        // for answers
  int64_t grpc_steps = 0;        // of them, sent over gRPC for want of a same-host channel
  std::string why_grpc;          // the error of opening one
};

struct SessionBytes {
  int64_t codes = 0, rows = 0;
};

// Calls are sent in order, and answers are waited for as late as possible. An error is of any call since the last
// Settle, and the session is of no use from then on. Any time may pass behind a Settle. One thread at a time.
class Session {
 public:
  virtual ~Session() = default;  // deletes what it made on the server

  // Rows [count, num_kv_heads, head_dim] of a layer in the geometry's dtype, from `position` on. Copied.
  virtual absl::Status Append(int layer, int64_t position, int64_t count, const void* keys, const void* values) = 0;
  // Appends one row, then attends all of the layer's. `queries`: [num_q_heads, head_dim], copied. `out`: the same
  // shape, and log_sum_exp [num_q_heads], filled at the latest by Settle.
  virtual absl::Status Attend(int layer, int64_t position, const void* key, const void* value, const float* queries,
                              int top_k, float* out, float* log_sum_exp) = 0;
  // Waits for all answers.
  virtual absl::Status Settle() = 0;
  // Drops rows at and after `position`, of all layers.
  virtual absl::Status Truncate(int64_t position) = 0;

  // What it takes on the server; of one that is gone, nothing.
  virtual SessionBytes bytes() = 0;
  virtual const SessionCounts& counts() const = 0;
};

// Connects to the server and makes an index of its own there with one empty sequence. The client's library is loaded
// then: NOT_FOUND where it does not lie beside the plug-in. Other errors are the server's.
// FAILED_PRECONDITION where there is a soft cap that the server is too old for.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionConfig& config);

// What that library exports, by the name of kOpenSessionSymbol.
using OpenSessionFn = absl::Status(const SessionConfig& config, std::unique_ptr<Session>* session);
inline constexpr char kOpenSessionSymbol[] = "SeineOpenSession";

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_
