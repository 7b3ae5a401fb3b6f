// Connections and streams by hand: too many, reset at once, silent, slow.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/soak/attacks/helpers.h"
#include "tests/soak/attacks/made_attacks.h"
#include "tests/soak/server/raw_connection.h"

namespace seine::soak {

namespace {

constexpr char kReflectionPath[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr const char* kFlooded[] = {"/seine.v1.RetrievalService/Decode", "/seine.v1.RetrievalService/Append",
                                    "/seine.v1.RetrievalService/Unknown", "/grpc.health.v1.Health/Check",
                                    kReflectionPath};

// One connection of a thread, each for the next method but one, `at_once` calls in a packet. `pause`: bounds the load
// to some 20,000 a second.
void ResetOn(const Target& target, int thread, uint32_t at_once, bool pause, Tally& tally) {
  static thread_local size_t next = static_cast<size_t>(thread);
  RawConnection connection(target.endpoint);
  if (!connection.Open() || !connection.Handshake(5000)) return Pause(50);
  const char* path = kFlooded[std::exchange(next, next + 2) % std::size(kFlooded)];
  for (uint32_t stream = 1; stream < 60'000;) {
    std::string calls;
    for (uint32_t i = 0; i < at_once; ++i, stream += 2) calls += RawConnection::OpenedAndReset(stream, path);
    if (!connection.Send(calls)) return;
    tally.CaseAndFault(at_once);
    if (stream % 64 == 1) connection.Drain();
    if (pause && stream % 512 == 1) Pause(5);
  }
}

// Frames that cost a client nothing and ask a server for something. A well-behaved client sends few of them.
std::vector<std::string> ControlFrames() {
  const auto frame = [](uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    return RawConnection::Frame(type, flags, stream, payload);
  };
  const std::string zeros(8, '\0');
  return {frame(6, 0, 0, zeros),                                                  // PING
          frame(4, 0, 0, ""),                                                     // SETTINGS
          frame(4, 0, 0, std::string("\0\x04\0\x01\0\0\0\x04\0\0\xff\xff", 12)),  // SETTINGS: two windows
          frame(2, 0, 3, std::string("\0\0\0\0\x10", 5)),                         // PRIORITY
          frame(8, 0, 0, std::string("\0\0\0\x01", 4)),                           // WINDOW_UPDATE
          frame(0xfa, 0, 0, zeros),                                               // of no known type
          frame(6, 1, 0, zeros),                                                  // a PING's acknowledgement
          frame(RawConnection::kData, 0, 1, "")};                                 // DATA of a stream that has ended
}

// 40 connections, each of which sends frame after frame of one of these kinds, 4,096 in a packet, and reads nothing or,
// where it is `polite`, what is there. What the server cuts off comes again.
void Control(const Target& target, const std::vector<std::string>& kinds, bool polite, Tally& tally) {
  constexpr size_t kConnections = 40, kFrames = 4096;
  std::vector<std::string> packets;
  for (const std::string& kind : kinds) {
    for (size_t i = 0; i < kFrames; ++i) (i == 0 ? packets.emplace_back() : packets.back()) += kind;
  }
  std::vector<std::unique_ptr<RawConnection>> open(kConnections);
  for (size_t next = 0;; ++next) {
    auto& connection = open[next % kConnections];
    if (connection == nullptr) {
      connection = std::make_unique<RawConnection>(target.endpoint);
      // The stream's error is an answer that nobody reads.
      if (!connection->Open() || !connection->Handshake(1000) ||
          !connection->Send(RawConnection::OpenedAndReset(1, kFlooded[2]))) {
        connection = nullptr;
        continue;
      }
    }
    const size_t sent = connection->SendNow(packets[next % packets.size()]);
    if (polite) connection->Drain();
    const size_t frames = sent / kinds[next % packets.size()].size();
    tally.CaseAndFault(static_cast<int64_t>(frames));
    if (connection->closed()) connection = nullptr;
    if (next % kConnections == 0) Pause(1);
  }
}

}  // namespace

void Pings(const Target& target, Tally& tally) { Control(target, {ControlFrames()[0]}, /*polite=*/false, tally); }

void ReadPings(const Target& target, Tally& tally) { Control(target, {ControlFrames()[0]}, /*polite=*/true, tally); }

void Settings(const Target& target, Tally& tally) {
  const std::vector<std::string> all = ControlFrames();
  Control(target, {all[1], all[2]}, /*polite=*/false, tally);
}

void ControlFlood(const Target& target, Tally& tally) { Control(target, ControlFrames(), /*polite=*/true, tally); }

void Resets(const Target& target, Tally& tally) {
  InParallel(2, [&](int thread) { ResetOn(target, thread, 1, /*pause=*/true, tally); });
}

void ResetFlood(const Target& target, Tally& tally) {
  InParallel(2, [&](int thread) { ResetOn(target, thread, 128, /*pause=*/false, tally); });
}

void Descriptors(const Target& target, Tally& tally) {
  for (;;) {
    std::deque<RawConnection> open;
    for (int i = 0; i < 900; ++i) {
      open.emplace_back(target.endpoint);
      if (!open.back().Open()) open.pop_back();
      tally.CaseAndFault();
    }
    Pause(400);
    open.clear();
    Pause(100);
  }
}

// Each has shaken hands and then says nothing.
void IdleConnections(const Target& target, Tally& tally) {
  RaiseDescriptors();
  const int wanted = std::max(1, static_cast<int>(2000 * target.seconds / 10));
  std::deque<RawConnection> open;
  for (int i = 0; i < wanted; ++i) {
    open.emplace_back(target.endpoint);
    if (open.back().Open() && open.back().Handshake(20'000)) {
      tally.CaseAndFault();
    } else {
      tally.Break(absl::StrCat("connection ", i, " was refused"));
    }
  }
  Forever();
}

void Churn(const Target& target, Tally& tally) {
  InParallel(2, [&](int) {
    RawConnection connection(target.endpoint);
    connection.Open();
    connection.Send("GET / HTTP/1.1\r\n\r\n");
    tally.CaseAndFault();
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  });
}

// Messages that are announced as large, and come in part.
void SlowSenders(const Target& target, Tally& tally) {
  std::deque<RawConnection> open;
  const std::string begun = std::string("\0", 1) + std::string("\x03\x80\0\0", 4) + std::string(16'000, '\x0a');
  for (int i = 0; i < 8; ++i) {
    open.emplace_back(target.endpoint);
    if (!open.back().Open() || !open.back().Handshake(5000)) continue;
    for (uint32_t stream = 1; stream < 100; stream += 2) {
      const std::string path =
          stream % 4 == 1 ? "/seine.v1.RetrievalService/AppendStream" : "/seine.v1.RetrievalService/Append";
      open.back().Send(RawConnection::Headers(stream, path) +
                       RawConnection::Frame(RawConnection::kData, 0, stream, begun));
      tally.CaseAndFault();
    }
  }
  for (;;) {
    for (auto& connection : open) connection.Drain();
    Pause(20);
  }
}

void IdleStreams(const Target& target, Tally& tally) {
  Client client(target.endpoint);
  Prompt(client, kAttacked, "idle", 64, 7);
  std::deque<grpc::ClientContext> contexts;
  std::deque<v1::AppendStreamResponse> totals;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::AppendStreamRequest>>> appends;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>> decodes;
  for (int i = 0; i < 100; ++i) {
    appends.push_back(client.retrieval->AppendStream(&contexts.emplace_back(), &totals.emplace_back()));
    decodes.push_back(client.retrieval->Decode(&contexts.emplace_back()));
    tally.CaseAndFault(2);
  }
  Forever();
}

void Reflection(const Target& target, Tally& tally) {
  std::deque<RawConnection> open;
  for (int i = 0; i < 4; ++i) {
    open.emplace_back(target.endpoint);
    if (!open.back().Open() || !open.back().Handshake(5000)) continue;
    for (uint32_t stream = 1; stream < 400; stream += 2) {
      open.back().Send(RawConnection::Headers(stream, kReflectionPath));
      tally.CaseAndFault();
    }
  }
  Forever();
}

}  // namespace seine::soak
