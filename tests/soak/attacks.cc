#include "tests/soak/attacks.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/soak/made_requests.h"
#include "tests/soak/raw_connection.h"

namespace seine::soak {
namespace {

using Random = std::mt19937;
constexpr char kAttacked[] = "attack";

void Pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
void Forever() {
  for (;;) Pause(1000);
}

// Runs `work(i)` on threads of its own, again and again.
void InParallel(int threads, const std::function<void(int)>& work) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([=] {
      for (;;) work(i);
    });
  }
  for (auto& thread : running) thread.join();
}

void Expect(const grpc::Status& status, const std::set<int>& codes, const std::string& what, Tally& tally) {
  tally.Case();
  if (!codes.contains(status.error_code())) {
    tally.Break(absl::StrCat(what, ": code ", status.error_code(), ": ", status.error_message()));
  } else if (!status.ok() && status.error_message().empty()) {
    tally.Break(absl::StrCat(what, ": code ", status.error_code(), " without a text"));
  }
}

const std::set<int> kAnswers = {
    grpc::OK,           grpc::INVALID_ARGUMENT,  grpc::NOT_FOUND, grpc::ALREADY_EXISTS, grpc::FAILED_PRECONDITION,
    grpc::OUT_OF_RANGE, grpc::RESOURCE_EXHAUSTED};

std::set<int> With(std::set<int> codes, std::initializer_list<int> more) {
  codes.insert(more);
  return codes;
}

grpc::Status Raw(Client& client, const std::string& path, const std::string& bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, client.channel);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  return grpc::internal::BlockingUnaryCall(client.channel.get(), rpc, &context, sent, &received);
}

// A right request of every unary RPC.
std::vector<std::pair<std::string, std::string>> Requests(const v1::SequenceHandle& handle) {
  std::vector<std::pair<std::string, std::string>> all;
  const auto add = [&](const char* path, const auto& request) {
    all.emplace_back(absl::StrCat("/seine.v1.", path), request.SerializeAsString());
  };
  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("made");
  create.mutable_spec()->mutable_geometry()->mutable_rope()->set_config_json("{\"rope_theta\": 10000.0}");
  add("IndexService/CreateIndex", create);
  v1::GetIndexRequest get_index;
  get_index.set_name(kAttacked);
  add("IndexService/GetIndex", get_index);
  add("IndexService/ListIndexes", v1::ListIndexesRequest());
  v1::DeleteIndexRequest delete_index;
  delete_index.set_name("made");
  add("IndexService/DeleteIndex", delete_index);
  v1::CreateSequenceRequest create_sequence;
  create_sequence.set_index(kAttacked);
  create_sequence.set_id("another");
  add("SequenceService/CreateSequence", create_sequence);
  v1::GetSequenceRequest get;
  *get.mutable_handle() = handle;
  add("SequenceService/GetSequence", get);
  v1::ListSequencesRequest list;
  list.set_index(kAttacked);
  add("SequenceService/ListSequences", list);
  v1::ForkSequenceRequest fork;
  *fork.mutable_source() = handle;
  fork.set_new_id("forked");
  fork.set_position(100);
  add("SequenceService/ForkSequence", fork);
  v1::DeleteSequenceRequest del;
  *del.mutable_handle() = handle;
  del.mutable_handle()->set_id("forked");
  del.mutable_handle()->clear_generation();
  add("SequenceService/DeleteSequence", del);
  v1::TruncateSequenceRequest truncate;
  *truncate.mutable_handle() = handle;
  truncate.set_position(500);
  add("SequenceService/TruncateSequence", truncate);
  v1::AppendRequest append;
  *append.mutable_item() = Item(handle, 0, 500, 4, 1);
  add("RetrievalService/Append", append);
  v1::RetrieveRequest retrieve;
  *retrieve.add_items() = Query(handle, 0, 1);
  retrieve.mutable_selector()->set_top_k(8);
  add("RetrievalService/Retrieve", retrieve);
  v1::AttendRequest attend;
  *attend.add_items() = Query(handle, 1, 1);
  attend.mutable_attention()->set_with_positions(true);
  add("RetrievalService/Attend", attend);
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  gather.set_keys(true);
  const int32_t positions[] = {1, 2, 300};
  gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
  gather.mutable_positions()->add_shape(3);
  gather.mutable_positions()->set_raw(positions, sizeof(positions));
  add("RetrievalService/Gather", gather);
  v1::ScoreRequest score;
  *score.mutable_handle() = handle;
  score.mutable_scorer()->set_name("keydiff");
  add("EvictionService/Score", score);
  v1::EvictRequest evict;
  *evict.mutable_handle() = handle;
  evict.mutable_scorer()->set_name("manifoldkv");
  evict.mutable_budget()->set_tokens(400);
  evict.mutable_keep()->set_sinks(4);
  evict.set_dry_run(true);
  add("EvictionService/Evict", evict);
  v1::DiagnoseRequest diagnose;
  *diagnose.mutable_handle() = handle;
  diagnose.add_scorers()->set_name("keydiff");
  diagnose.mutable_budget()->set_tokens(100);
  add("EvictionService/Diagnose", diagnose);
  add("AdminService/GetServerInfo", v1::GetServerInfoRequest());
  v1::DescribeHeadRequest describe;
  *describe.mutable_handle() = handle;
  add("AdminService/DescribeHead", describe);
  v1::MeasureProfileRequest measure;
  *measure.add_sequences() = handle;
  add("AdminService/MeasureProfile", measure);
  v1::CompareExactRequest compare;
  compare.set_index(handle.index());
  compare.set_sequence(handle.id());
  compare.set_samples(2);
  add("AdminService/CompareExact", compare);
  add("AdminService/GetMetrics", v1::GetMetricsRequest());
  return all;
}

std::string Mutated(std::string bytes, Random& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = random() % std::min<size_t>(bytes.size(), 256);  // where the fields are, not the keys
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, 1 + random() % 3);
        break;
      default:
        bytes.insert(at, 1 + random() % 3, static_cast<char>(random()));
    }
  }
  return bytes;
}

void Mutation(const std::string& address, uint32_t seed, Tally& tally) {
  InParallel(4, [&](int thread) {
    thread_local Random random(seed + static_cast<uint32_t>(thread));
    Client client(address);
    const auto handle = Prompt(client, kAttacked, absl::StrCat("mutated-", thread, "-", random()), 600, 1);
    const auto requests = Requests(handle);
    for (int i = 0; i < 2000; ++i) {
      const auto& [path, bytes] = requests[random() % requests.size()];
      const std::string sent = random() % 50 == 0 ? std::string(random() % 100, '\xff') : Mutated(bytes, random);
      Expect(Raw(client, path, sent), kAnswers, path, tally);
    }
  });
}

// Whole table: every field of every request at its extremes is the unit tests'; here whole messages at theirs.
void Extremes(const std::string& address, uint32_t, Tally& tally) {
  Client client(address);
  const auto handle = Prompt(client, kAttacked, "extremes", 600, 1);
  const auto requests = Requests(handle);
  const std::string nested = absl::StrCat("{\"rope\":", std::string(1'000'000, '['), std::string(1'000'000, ']'), "}");
  for (;;) {
    for (const auto& [path, bytes] : requests) {
      for (const std::string& sent :
           {std::string(), std::string("\x0a"), bytes + bytes, bytes + std::string(1 << 20, '\0'),
            std::string(100'000, '\x0b'), bytes.substr(0, bytes.size() / 2)}) {
        Expect(Raw(client, path, sent), kAnswers, path, tally);
      }
    }
    v1::CreateIndexRequest deep;
    *deep.mutable_spec() = Spec("deep");
    deep.mutable_spec()->mutable_geometry()->mutable_rope()->set_config_json(nested);
    Expect(Raw(client, "/seine.v1.IndexService/CreateIndex", deep.SerializeAsString()), {grpc::INVALID_ARGUMENT},
           "a million brackets", tally);
    v1::GetIndexRequest long_name;
    long_name.set_name(std::string(500'000, 'n'));
    Expect(Raw(client, "/seine.v1.IndexService/GetIndex", long_name.SerializeAsString()),
           {grpc::INVALID_ARGUMENT, grpc::NOT_FOUND}, "a long name", tally);
  }
}

// Calls that are cancelled, or late, at any point; what is stored is of whoever sent it.
void Cancels(const std::string& address, uint32_t seed, Tally& tally) {
  InParallel(6, [&](int thread) {
    thread_local Random random(seed + static_cast<uint32_t>(thread));
    Client client(address);
    const auto mark = static_cast<uint8_t>(0x20 + thread);
    const auto handle = Prompt(client, kAttacked, absl::StrCat("cancels-", thread, "-", random()), 64, mark);
    const auto ends = With(kAnswers, {grpc::CANCELLED, grpc::DEADLINE_EXCEEDED});
    int64_t at = 64;
    for (int i = 0; i < 300; ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(random() % 3000));
      v1::AppendRequest request;
      v1::AppendResponse response;
      *request.mutable_item() = Item(handle, 0, at, 1 + random() % 512, mark);
      std::thread canceller;
      if (random() % 2 == 0) {
        canceller = std::thread([&context, wait = random() % 2000] {
          std::this_thread::sleep_for(std::chrono::microseconds(wait));
          context.TryCancel();
        });
      }
      const grpc::Status status = client.retrieval->Append(&context, request, &response);
      if (canceller.joinable()) canceller.join();
      Expect(status, ends, "Append", tally);
      grpc::ClientContext get_context, gather_context;
      v1::GetSequenceRequest get;
      v1::GetSequenceResponse got;
      *get.mutable_handle() = handle;
      if (!client.sequence->GetSequence(&get_context, get, &got).ok()) continue;
      at = got.sequence().layer_tokens(0);
      v1::GatherRequest gather;
      v1::GatherResponse rows;
      *gather.mutable_handle() = handle;
      gather.set_keys(true);
      gather.set_values(true);
      std::vector<int32_t> positions;
      for (int k = 0; k < 64; ++k) positions.push_back(static_cast<int32_t>(random() % at));
      gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
      gather.mutable_positions()->add_shape(64);
      gather.mutable_positions()->set_raw(positions.data(), positions.size() * 4);
      if (!client.retrieval->Gather(&gather_context, gather, &rows).ok()) continue;
      for (const v1::Tensor* tensor : {&rows.keys(), &rows.values()}) {
        for (int k = 0; k < 64; ++k) {
          tally.Case();
          if (static_cast<uint8_t>(tensor->raw()[static_cast<size_t>(k) * kDim * 2]) != mark) {
            tally.Break("a foreign byte");
          }
        }
      }
    }
  });
}

// HEADERS and RST_STREAM, as fast as the socket takes them.
void Resets(const std::string& address, uint32_t, Tally& tally) {
  InParallel(2, [&](int thread) {
    RawConnection connection(address);
    if (!connection.Open() || !connection.Handshake(5000)) return Pause(50);
    const char* path = thread == 0 ? "/seine.v1.RetrievalService/Decode" : "/seine.v1.RetrievalService/Append";
    for (uint32_t stream = 1; stream < 60'000; stream += 2) {
      const std::string cancel("\0\0\0\x08", 4);
      if (!connection.Send(RawConnection::Headers(stream, path) + RawConnection::Frame(3, 0, stream, cancel))) break;
      tally.Case();
      if (stream % 64 == 1) connection.Drain();
      if (stream % 512 == 1) Pause(5);  // bounded load: some 20,000 a second
    }
  });
}

void Descriptors(const std::string& address, uint32_t, Tally& tally) {
  for (;;) {
    std::deque<RawConnection> open;
    for (int i = 0; i < 900; ++i) {
      open.emplace_back(address);
      if (!open.back().Open()) open.pop_back();
      tally.Case();
    }
    Pause(400);
    open.clear();
    Pause(100);
  }
}

void Churn(const std::string& address, uint32_t, Tally& tally) {
  InParallel(2, [&](int) {
    RawConnection connection(address);
    connection.Open();
    connection.Send("GET / HTTP/1.1\r\n\r\n");
    tally.Case();
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  });
}

// Steps with large answers, announced; the parent stops this process, so that nobody reads.
void Unread(const std::string& address, uint32_t, Tally& tally) {
  Client client(address);
  const auto handle = Prompt(client, kAttacked, "unread", 16'384, 2);
  v1::DecodeRequest step;
  for (uint32_t i = 0; i < 128; ++i) *step.add_items() = Query(handle, 0, i);
  step.mutable_selector()->set_top_k(2000);
  step.mutable_selector()->set_with_scores(true);
  step.set_announce(true);
  InParallel(24, [&](int) {
    grpc::ClientContext context;
    auto stream = client.retrieval->Decode(&context);
    v1::DecodeResponse response;
    while (stream->Write(step)) {
      tally.Case();
      if (!stream->Read(&response)) break;
    }
    stream->Finish();
    Pause(10);
  });
}

void UnreadAnswers(const std::string& address, uint32_t, Tally& tally) {
  Client client(address);
  const auto handle = Prompt(client, kAttacked, "unread-answers", 16'384, 2);
  v1::GatherRequest gather;
  *gather.mutable_handle() = handle;
  gather.set_keys(true);
  gather.set_values(true);
  std::vector<int32_t> positions(200'000);  // 51 MB
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 16'384);
  gather.mutable_positions()->set_dtype(v1::D_TYPE_INT32);
  gather.mutable_positions()->add_shape(static_cast<int64_t>(positions.size()));
  gather.mutable_positions()->set_raw(positions.data(), positions.size() * 4);
  InParallel(40, [&](int) {
    grpc::ClientContext context;
    v1::GatherResponse response;
    const grpc::Status status = client.retrieval->Gather(&context, gather, &response);
    Expect(status, {grpc::OK, grpc::RESOURCE_EXHAUSTED, grpc::CANCELLED, grpc::UNAVAILABLE}, "Gather", tally);
    if (!status.ok()) Pause(50);
  });
}

void Bomb(const std::string& address, uint32_t, Tally& tally) {
  InParallel(6, [&](int) {
    Client client(address);
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    v1::GetIndexRequest request;
    v1::GetIndexResponse response;
    request.set_name(std::string(60 << 20, '\0'));
    Expect(client.index->GetIndex(&context, request, &response),
           {grpc::UNIMPLEMENTED, grpc::INVALID_ARGUMENT, grpc::RESOURCE_EXHAUSTED}, "gzip", tally);
  });
}

void Queue(const std::string& address, uint32_t, Tally& tally) {
  Client first(address);
  const auto handle = Prompt(first, kAttacked, "queue", 64, 3);
  v1::AppendRequest request;
  *request.mutable_item() = Item(handle, 0, 1 << 20, 32'768, 3);  // 16 MiB, beyond a gap: never taken
  InParallel(60, [&](int) {
    Client client(address);
    grpc::ClientContext context;
    v1::AppendResponse response;
    const grpc::Status status = client.retrieval->Append(&context, request, &response);
    Expect(status, {grpc::OUT_OF_RANGE, grpc::RESOURCE_EXHAUSTED}, "Append of 16 MiB", tally);
    if (!status.ok()) Pause(20);
  });
}

// Messages that are announced as large, and come in part.
void SlowSenders(const std::string& address, uint32_t, Tally& tally) {
  std::deque<RawConnection> open;
  const std::string begun = std::string("\0", 1) + std::string("\x03\x80\0\0", 4) + std::string(16'000, '\x0a');
  for (int i = 0; i < 8; ++i) {
    open.emplace_back(address);
    if (!open.back().Open() || !open.back().Handshake(5000)) continue;
    for (uint32_t stream = 1; stream < 100; stream += 2) {
      const std::string path =
          stream % 4 == 1 ? "/seine.v1.RetrievalService/AppendStream" : "/seine.v1.RetrievalService/Append";
      open.back().Send(RawConnection::Headers(stream, path) + RawConnection::Frame(0, 0, stream, begun));
      tally.Case();
    }
  }
  for (;;) {
    for (auto& connection : open) connection.Drain();
    Pause(20);
  }
}

void Geometry(const std::string& address, uint32_t seed, Tally& tally) {
  Client client(address);
  v1::CreateIndexRequest create;
  *create.mutable_spec() = Spec("huge");
  create.mutable_spec()->mutable_geometry()->set_num_layers(4096);
  create.mutable_spec()->mutable_geometry()->set_num_q_heads(1024);
  create.mutable_spec()->mutable_geometry()->set_num_kv_heads(1024);
  Random random(seed);
  Prompt(client, kAttacked, "geometry", 64, 4);
  for (int made = 0;; ++made) {
    create.mutable_spec()->set_name(absl::StrCat("huge-", made % 16));
    grpc::ClientContext context;
    v1::CreateIndexResponse created;
    Expect(client.index->CreateIndex(&context, create, &created), With(kAnswers, {}), "CreateIndex", tally);
    for (int i = 0; i < 200; ++i) {
      grpc::ClientContext sequence_context;
      v1::CreateSequenceRequest request;
      v1::CreateSequenceResponse response;
      request.set_index(i % 4 == 0 ? create.spec().name() : kAttacked);
      Expect(client.sequence->CreateSequence(&sequence_context, request, &response), kAnswers, "CreateSequence", tally);
    }
  }
}

// Twelve exact readers of one layer, and a writer of one token.
void Readers(const std::string& address, uint32_t, Tally& tally) {
  Client setup(address);
  const auto handle = Prompt(setup, kAttacked, "readers", 65'536, 5);
  v1::RetrieveRequest request;
  for (uint32_t i = 0; i < 16; ++i) *request.add_items() = Query(handle, 0, i);
  request.mutable_selector()->set_top_k(8);
  request.mutable_selector()->set_exact(true);
  std::atomic<int64_t> at{65'536};
  InParallel(13, [&](int thread) {
    Client client(address);
    for (int i = 0; i < 100; ++i) {
      grpc::ClientContext context;
      const auto begin = std::chrono::steady_clock::now();
      if (thread < 12) {
        v1::RetrieveResponse response;
        Expect(client.retrieval->Retrieve(&context, request, &response), kAnswers, "Retrieve", tally);
        continue;
      }
      v1::AppendRequest append;
      v1::AppendResponse response;
      *append.mutable_item() = Item(handle, 0, at++, 1, 5);
      Expect(client.retrieval->Append(&context, append, &response), kAnswers, "Append", tally);
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(2))
        tally.Break("a writer waited for over 2 s");
    }
  });
}

// What takes long, for nobody.
void LongWork(const std::string& address, uint32_t, Tally& tally) {
  Client setup(address);
  const auto handle = Prompt(setup, kAttacked, "long", 65'536, 6);
  v1::DecodeRequest step;
  for (uint32_t i = 0; i < 256; ++i) *step.add_items() = Query(handle, 1, i);
  step.mutable_selector()->set_top_k(8);
  step.mutable_selector()->set_exact(true);
  InParallel(14, [&](int thread) {
    Client client(address);
    grpc::ClientContext context;
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(100);
    const auto late = With(kAnswers, {grpc::DEADLINE_EXCEEDED, grpc::CANCELLED});
    if (thread < 4) {
      context.set_deadline(deadline);
      v1::MeasureProfileRequest request;
      v1::MeasureProfileResponse response;
      *request.add_sequences() = handle;
      Expect(client.admin->MeasureProfile(&context, request, &response), late, "MeasureProfile", tally);
    } else if (thread < 12) {
      auto stream = client.retrieval->Decode(&context);
      stream->Write(step);
      Pause(30);
      context.TryCancel();
      Expect(stream->Finish(), late, "Decode", tally);
    } else {
      context.set_deadline(deadline);
      v1::ScoreRequest request;
      v1::ScoreResponse response;
      *request.mutable_handle() = handle;
      request.mutable_scorer()->set_name(thread == 12 ? "expected_attention" : "keydiff");
      if (thread == 12) {
        request.mutable_scorer()->set_future(1 << 24);
        *request.mutable_given()->mutable_queries() = Halves(64, kQHeads, 1, 1);
      } else {
        request.mutable_scorer()->set_anchor(v1::ANCHOR_PAIRWISE);
      }
      Expect(client.eviction->Score(&context, request, &response), late, "Score", tally);
    }
  });
}

// Computes and leaves the server alone: what a machine without an idle core costs a bystander by itself.
void BusyCores(const std::string&, uint32_t, Tally& tally) {
  tally.Case();
  InParallel(static_cast<int>(std::thread::hardware_concurrency()), [](int) {
    for (volatile uint64_t i = 0; i < 100'000'000;) i = i + 1;
  });
}

void IdleStreams(const std::string& address, uint32_t, Tally& tally) {
  Client client(address);
  Prompt(client, kAttacked, "idle", 64, 7);
  std::deque<grpc::ClientContext> contexts;
  std::deque<v1::AppendStreamResponse> totals;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::AppendStreamRequest>>> appends;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>> decodes;
  for (int i = 0; i < 100; ++i) {
    appends.push_back(client.retrieval->AppendStream(&contexts.emplace_back(), &totals.emplace_back()));
    decodes.push_back(client.retrieval->Decode(&contexts.emplace_back()));
    tally.Case(2);
  }
  Forever();
}

void Reflection(const std::string& address, uint32_t, Tally& tally) {
  std::deque<RawConnection> open;
  for (int i = 0; i < 4; ++i) {
    open.emplace_back(address);
    if (!open.back().Open() || !open.back().Handshake(5000)) continue;
    for (uint32_t stream = 1; stream < 400; stream += 2) {
      const std::string path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
      open.back().Send(RawConnection::Headers(stream, path));
      tally.Case();
    }
  }
  Forever();
}

}  // namespace

void Tally::Break(const std::string& what) {
  printf("break: %s\n", what.c_str());
  fflush(stdout);
}

const std::vector<Attack>& Attacks() {
  static const auto* const attacks = new std::vector<Attack>{
      {"busy-cores", "no attack: a program that computes on every core, for comparison", &BusyCores},
      {"mutation", "right requests of every RPC with some bytes changed", &Mutation},
      {"extremes", "empty, doubled, halved, deep and padded messages", &Extremes},
      {"cancels", "calls cancelled or late at any point; keys carry marks", &Cancels},
      {"resets", "streams opened and reset at once", &Resets},
      {"descriptors", "more connections than descriptors", &Descriptors, {}, 256, false, true},
      {"descriptors-polling", "the same, where the server polls", &Descriptors, {"--polling"}, 256, false, true},
      {"churn", "connections that come, say nonsense and go", &Churn},
      {"unread", "24 Decode streams whose client hangs", &Unread, {}, 0, true},
      {"unread-answers", "40 answers of 51 MB that nobody reads", &UnreadAnswers, {}, 0, true},
      {"bomb", "compressed messages that inflate a thousand times", &Bomb},
      {"queue", "60 appends of 16 MiB at once", &Queue},
      {"slow-senders", "400 messages of 56 MB that come in part", &SlowSenders},
      {"geometry", "indexes of 4,096 layers of 1,024 heads, and empty sequences", &Geometry},
      {"readers", "12 exact readers of a layer and its writer", &Readers},
      {"long-work", "long calls that are late or cancelled", &LongWork},
      {"idle-streams", "200 streams that say nothing", &IdleStreams},
      {"idle-streams-polling", "the same, where the server polls", &IdleStreams, {"--polling"}},
      {"reflection", "800 reflection streams", &Reflection},
  };
  return *attacks;
}

}  // namespace seine::soak
