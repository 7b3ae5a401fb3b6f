// Seine's C++ client: start here. Calls a seined over a Unix socket or TCP, as an inference engine would.
//
//   auto client = seine::client::Client::Connect(seine::client::DefaultEndpoint()).value();
//   client->CreateIndex({.name = "llama", .geometry = {32, 32, 8, 128, DType::kBFloat16}}).value();
//   auto sequence = client->CreateSequence("llama", "").value();
//   client->AppendStream({{sequence, layer, 0, {keys, DType::kBFloat16, {tokens, 8, 128}}, {}}}).value();   // prefill
//   auto stream = client->OpenDecodeStream(Transport::kAuto).value();
//   stream->Write(step); stream->Read(&answer);                                // a layer of a decode step, whole batch
//
// Errors are absl::Status with the server's text, opening with the request's field that is wrong where the server names
// one; FieldOf and ReasonOf give both apart. A call that fails has changed nothing on the server, except CANCELLED,
// DEADLINE_EXCEEDED, UNAVAILABLE and UNKNOWN, where nobody knows; repeating an append is safe (it is position-checked).
// UNAVAILABLE: no server there. DEADLINE_EXCEEDED: longer than Options::timeout. Nothing throws.
//
// A child of fork() can use nothing that its parent made: FAILED_PRECONDITION, "made before fork", at once.
//
// Thread safety: a Client serves any number of threads. A DecodeStream belongs to one thread at a time.
#ifndef SEINE_CLIENT_CLIENT_H_
#define SEINE_CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/methods.h"
#include "client/security.h"
#include "client/types.h"
#include "seine/v1/admin_service.pb.h"
#include "seine/v1/index_service.pb.h"

namespace seine {
struct Profile;  // profile/profile.h
}

namespace seine::client {

// Where seined listens unless told otherwise: unix://$XDG_RUNTIME_DIR/seine.sock where that folder is one's own and
// nobody else may write to it, else unix:///tmp/seine-<uid>/seine.sock. FAILED_PRECONDITION of Connect where that
// folder in /tmp is another's, who would be sent everything.
std::string DefaultEndpoint();
// What SEINE_SERVER names, as every program takes it; DefaultEndpoint() where it is not set or empty.
std::string EndpointFromEnvironment();

// The request's field that an error is about, such as "item.keys.shape"; empty if the server named none.
std::string FieldOf(const absl::Status& status);
// The machine-readable reason, such as "SHAPE_MISMATCH"; empty if there is none.
std::string ReasonOf(const absl::Status& status);
// How long the server asks to wait before the call is made again (google.rpc.RetryInfo); zero: it does not say.
absl::Duration RetryDelayOf(const absl::Status& status);

// Times longer than a century have no end.
struct Options {
  absl::Duration connect_timeout = absl::Seconds(5);
  bool wait_for_server = false;                // true: try again until connect_timeout; false: the first refusal counts
  absl::Duration timeout = absl::Seconds(60);  // of each call but streams; InfiniteDuration(): none
  // Longest time of one decode step. A step that takes longer ends the stream: DEADLINE_EXCEEDED.
  absl::Duration step_timeout = absl::InfiniteDuration();
  int64_t max_message_bytes = int64_t{64} << 20;  // largest answer taken
  // Time that Read spins for an answer before it sleeps (kSharedMemory). A wake-up costs 20 to 50 us.
  absl::Duration spin = absl::Microseconds(100);
  // Bytes of each of a same-host channel's two rings, a power of two from 65,536 to 16 Mi; 0: the server's choice.
  int64_t ring_bytes = 0;
  Security security = {};  // none unless it is given; programs take SecurityFromEnvironment()
};

enum class Transport {
  kBlocking,  // sleeps in the kernel while waiting, but for the last moment of a longer step: the usual choice
  kPolling,   // spins on the caller's thread: least latency over gRPC, one core busy while Read waits
  // Over memory that is shared with the server, which must listen on a Unix socket of this host: no socket and no gRPC
  // between a step and its answer.
  kSharedMemory,         // spins for Options::spin, then sleeps
  kSharedMemoryPolling,  // never sleeps: one core busy while Read waits
  kAuto,                 // kSharedMemory where it can be had, else kBlocking: DecodeStream::fallback() says why
};

// A bidirectional stream with a connection, or a same-host channel, of its own. Answers come in the order of the steps;
// read one for each step written, and keep few steps unread: the server stops reading while its answers are not taken.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;  // cancels a stream that was not finished

  // Sends a step; copies the tensors out before it returns. INVALID_ARGUMENT: a tensor without data or with a negative
  // dimension, or a step above the server's message limit over shared memory; nothing was sent then. Any other error
  // means that the stream has ended. It does not wait for the step to reach the server, so an error on the way shows in
  // the next call.
  virtual absl::Status Write(const DecodeStep& step) = 0;

  // Waits for the next answer; reuses what `answer` has allocated. Not OK: the stream has ended, and why. Errors of a
  // step, of an append or of an item are inside the answer.
  virtual absl::Status Read(DecodeAnswer* answer) = 0;

  // Says that no step follows, and waits for the server to end the stream. Unread answers are dropped.
  virtual absl::Status Finish() = 0;

  // What carries the stream: never kAuto.
  virtual Transport transport() const = 0;
  // Why kAuto took gRPC: the error that opening shared memory gave; empty: it did not.
  virtual const std::string& fallback() const = 0;
};

// A call of any method by its name, in protobuf's JSON (methods.h). A call that is not a stream takes one request and
// has one answer. One thread may write while another reads.
class JsonCall {
 public:
  virtual ~JsonCall() = default;  // cancels a call that was not finished

  // INVALID_ARGUMENT: the text is no request, and nothing was sent. UNAVAILABLE: the call has ended; Finish says why.
  virtual absl::Status Write(absl::string_view request) = 0;
  virtual void WritesDone() = 0;  // no request follows
  // The next answer; nothing: none follows. It waits without end while requests may follow, then for Options::timeout.
  virtual absl::StatusOr<std::optional<std::string>> Read() = 0;
  // How the call ended. Nothing may be written or read meanwhile or later.
  virtual absl::Status Finish() = 0;
};

class Client {
 public:
  // `endpoint`: unix:///absolute/path, unix:path, a path with a slash in it, or host:port. INVALID_ARGUMENT for another
  // form; UNAVAILABLE if nothing answers there within connect_timeout.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& endpoint, const Options& options = {});
  virtual ~Client() = default;

  // Server. `service` as in grpc.health.v1, e.g. "seine.v1.RetrievalService"; empty: the whole server. NOT_FOUND: no
  // such service. False: it does not serve (it is shutting down).
  virtual absl::StatusOr<bool> IsServing(const std::string& service) = 0;
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo();
  absl::StatusOr<HeadInfo> DescribeHead(const Sequence& sequence, int layer, int kv_head);
  // One layer of a model profile, measured on what sequences of one index hold and were asked. Names, texts and RoPE
  // are the caller's to fill in.
  absl::StatusOr<Profile> MeasureProfile(absl::Span<const Sequence> sequences, int layer);

  // Indexes. Deleting one deletes its sequences.
  absl::StatusOr<v1::IndexInfo> CreateIndex(const v1::IndexSpec& spec);
  absl::StatusOr<v1::IndexInfo> GetIndex(const std::string& name);
  absl::StatusOr<std::vector<v1::IndexInfo>> ListIndexes();
  absl::Status DeleteIndex(const std::string& name);

  // Sequences. An empty id asks the server for one.
  absl::StatusOr<Sequence> CreateSequence(const std::string& index, const std::string& id);
  absl::StatusOr<SequenceInfo> GetSequence(const Sequence& sequence);
  absl::StatusOr<std::vector<SequenceInfo>> ListSequences(const std::string& index);
  absl::Status DeleteSequence(const Sequence& sequence);
  // A copy-on-write copy of the first `position` tokens of every layer; absent: of all.
  absl::StatusOr<Sequence> ForkSequence(const Sequence& source, const std::string& new_id,
                                        std::optional<int64_t> position);
  // Drops tokens at and after `position`.
  absl::StatusOr<SequenceInfo> TruncateSequence(const Sequence& sequence, int64_t position);
  // Writes the sequence, or its family, to a file of that name in the server's folder of snapshots.
  absl::StatusOr<SnapshotResult> Snapshot(const Sequence& sequence, const std::string& file,
                                          const SnapshotParams& params);
  absl::StatusOr<SnapshotResult> Snapshot(const Sequence& sequence, const std::string& file, SnapshotScope scope) {
    return Snapshot(sequence, file, SnapshotParams{.scope = scope});
  }
  // Makes the sequences that such a file holds. An empty name with a base: those that the base holds.
  absl::StatusOr<SnapshotResult> Restore(const std::string& index, const std::string& file,
                                         const RestoreParams& params);
  absl::StatusOr<SnapshotResult> Restore(const std::string& index, const std::string& file, const std::string& id) {
    return Restore(index, file, RestoreParams{.id = id});
  }
  absl::StatusOr<SnapshotResult> Restore(const std::string& index, const std::string& file, const std::string& id,
                                         uint64_t generation) {
    return Restore(index, file, RestoreParams{.id = id, .generation = generation});
  }

  // Data. Append is position-checked: an identical replay is a no-op, a gap OUT_OF_RANGE, other bytes at positions
  // already held ALREADY_EXISTS. Returns the layer's length; `retained`, which may be nullptr, is what the item asked.
  absl::StatusOr<int64_t> Append(const AppendItem& item, Retained* retained);
  absl::StatusOr<int64_t> Append(const AppendItem& item) { return Append(item, nullptr); }
  // Prefill: sends the items in order over one stream, cut along tokens into pieces below the server's message limit.
  // `progress` (may be empty) hears the tokens sent so far. On an error the pieces before it stay.
  virtual absl::StatusOr<AppendTotals> AppendStream(absl::Span<const AppendItem> items,
                                                    const std::function<void(int64_t tokens)>& progress) = 0;
  absl::StatusOr<AppendTotals> AppendStream(absl::Span<const AppendItem> items) { return AppendStream(items, {}); }
  // Items answer each for themselves (Answer::status); a wrong selector fails the call.
  absl::StatusOr<RetrieveResult> Retrieve(absl::Span<const RetrieveItem> items, const v1::Selector& selector);
  // The same, and attends what is selected and what is dense. A selector without a scope: each query head its own set.
  absl::StatusOr<AttendResult> Attend(absl::Span<const RetrieveItem> items, const v1::Selector& selector,
                                      const v1::Attention& attention);
  // Eviction. What is retained keeps its positions; Gather of an evicted token is NOT_FOUND.
  absl::StatusOr<Evicted> Evict(const EvictRequest& request);
  // What each KV head of a layer retains, as a kKept report: for whoever begins to follow a layer, or has missed an
  // answer (retained_sets.h). Nothing changes. FAILED_PRECONDITION where the index keeps no keys.
  absl::StatusOr<Retained> GetRetained(const Sequence& sequence, int layer);
  // The scores of every token that a layer holds, by KV head.
  absl::StatusOr<std::vector<HeadScores>> Score(const Sequence& sequence, int layer, const v1::ScorerSettings& scorer,
                                                const ScorerInputs& given);
  absl::StatusOr<std::vector<HeadDiagnosis>> Diagnose(const DiagnoseRequest& request);

  // Subspaces: the newest bases of a layer and how they fare; others in their place, from which learning goes on while
  // stored tokens keep the bases that they have; bases of one layer out of a profile of the server's, which changes
  // nothing; and what is retained of positions [begin, end) of one head as it reads.
  absl::StatusOr<LayerSubspace> GetBasis(const Sequence& sequence, int layer);
  absl::Status LoadBasis(const Sequence& sequence, int layer, const LayerBases& bases);
  absl::StatusOr<LayerBases> CalibrateBasis(const CalibrateRequest& request);
  absl::StatusOr<Reconstructed> Reconstruct(const Sequence& sequence, int layer, int kv_head, int64_t begin,
                                            int64_t end);

  absl::StatusOr<Gathered> Gather(const Sequence& sequence, int layer, int kv_head, absl::Span<const int32_t> positions,
                                  bool keys, bool values);
  virtual absl::StatusOr<std::unique_ptr<DecodeStream>> OpenDecodeStream(Transport transport) = 0;

  // Any call of one request and one answer in the contract's messages: the method is that which takes such a request.
  // Functions above are made of it. INVALID_ARGUMENT: no method does, or its answer is another or a stream.
  virtual absl::Status Call(const google::protobuf::Message& request, google::protobuf::Message* response) = 0;
  // client->Call<v1::GetMetricsResponse>(v1::GetMetricsRequest())
  template <typename Response>
  absl::StatusOr<Response> Call(const google::protobuf::Message& request) {
    Response response;
    if (absl::Status status = Call(request, &response); !status.ok()) return status;
    return response;
  }
  // Any method in JSON. `method` comes from FindMethod.
  virtual std::unique_ptr<JsonCall> OpenCall(const Method& method) = 0;
};

}  // namespace seine::client

#endif  // SEINE_CLIENT_CLIENT_H_
