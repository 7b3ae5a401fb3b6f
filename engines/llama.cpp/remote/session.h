// Sequences on a seined, as one llama.cpp context fills and asks them.
#ifndef SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_
#define SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/config/config.h"

namespace seine::llama {

// Settings as settings.h has them.
struct SessionConfig {
  std::string endpoint;
  std::string index;         // its name begins so and goes on with a hash of what follows; empty: one of its own
  std::vector<int> layers;   // of the model, which the server counts from 0
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

// A sequence that was in the index when the session was opened.
struct FoundSequence {
  int id = 0;
  int64_t length = 0;  // of the layer that has the fewest rows
};

// A row of one sequence, and a query that attends up to it.
struct AttendItem {
  int sequence = 0;
  int64_t position = 0;
  const void *key = nullptr, *value = nullptr;
  const float* queries = nullptr;  // [num_q_heads, head_dim]
  float* output = nullptr;         // of the same shape, filled at the latest by Settle
  float* log_sum_exp = nullptr;    // [num_q_heads], the same
};

// Sequences are numbered by the session. Calls are sent in order, and answers are waited for as late as possible. An
// error of Append or Attend is of any call since the last Settle: RESOURCE_EXHAUSTED and NOT_FOUND leave the session of
// use once Settle was called, others do not. What was sent may be sent again. Any time may pass behind a Settle. One
// thread at a time.
class Session {
 public:
  virtual ~Session() = default;  // deletes what it made on the server, unless the index has a name

  virtual const std::vector<FoundSequence>& found() const = 0;
  virtual absl::StatusOr<int> Create() = 0;
  // A copy of the first `position` rows of each layer.
  virtual absl::StatusOr<int> Fork(int sequence, int64_t position) = 0;
  // Drops rows at and after `position`, of all layers.
  virtual absl::Status Truncate(int sequence, int64_t position) = 0;
  virtual void Delete(int sequence) = 0;

  // Rows [count, num_kv_heads, head_dim] of a layer in the geometry's dtype, from `position` on. Copied.
  virtual absl::Status Append(int sequence, int layer, int64_t position, int64_t count, const void* keys,
                              const void* values) = 0;
  // Appends a row of each item's sequence, then attends all of the layer's rows. The sequences are different ones.
  // Rows and queries are copied.
  virtual absl::Status Attend(int layer, const std::vector<AttendItem>& items, int top_k) = 0;
  // Waits for all answers.
  virtual absl::Status Settle() = 0;
  // The sequence of the last error that was of one; 0: of none.
  virtual int failed() const = 0;
  virtual bool is_broken() const = 0;  // of no use any more
  // Rows [position, position + count) of a layer, in Append's form.
  virtual absl::Status Read(int sequence, int layer, int64_t position, int64_t count, std::string* keys,
                            std::string* values) = 0;

  // What it takes on the server; of one that is gone, nothing.
  virtual SessionBytes bytes() = 0;
  virtual const SessionCounts& counts() const = 0;
};

// Connects to the server and makes an index there, or takes that of the name and of these settings. The client's
// library is loaded then: NOT_FOUND where it does not lie beside the plug-in. Other errors are the server's.
// FAILED_PRECONDITION where there is a soft cap that the server is too old for.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionConfig& config);

// What that library exports, by the name of kOpenSessionSymbol.
using OpenSessionFn = absl::Status(const SessionConfig& config, std::unique_ptr<Session>* session);
inline constexpr char kOpenSessionSymbol[] = "SeineOpenSession";

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REMOTE_SESSION_H_
