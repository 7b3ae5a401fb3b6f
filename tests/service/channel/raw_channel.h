// A client's end of a same-host channel by hand, so that tests can do with it what the client library never does.
#ifndef SEINE_TESTS_SERVICE_CHANNEL_RAW_CHANNEL_H_
#define SEINE_TESTS_SERVICE_CHANNEL_RAW_CHANNEL_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "proto/channel/frame.h"
#include "seine/v1/retrieval_service.pb.h"
#include "seine/v1/shared_memory_service.grpc.pb.h"
#include "tests/service/fixture.h"

namespace seine::test {

// What OpenChannel answers.
grpc::Status AskForChannel(const Stubs& stubs, int64_t ring_bytes, v1::OpenChannelResponse* offer);

int ConnectTo(const std::string& path);  // a socket, or -1
// Sends a token. Returns the descriptor of the memory, or -1 where the server closes the socket instead.
int ShowToken(int socket, const std::string& token);

class RawChannel {
 public:
  // nullptr, and a test failure: the server gives none.
  static std::unique_ptr<RawChannel> Open(const Stubs& stubs, int64_t ring_bytes = 0);
  // Of what OpenChannel answered.
  static std::unique_ptr<RawChannel> Open(const v1::OpenChannelResponse& offer);
  ~RawChannel();

  // Waits at most 20 s for room, or a frame. False: the channel's socket is closed, or nothing comes.
  bool Send(const v1::DecodeRequest& request);
  bool SendApart(v1::DecodeRequest request);  // its tensors before it, as the client library does
  bool SendFrame(channel::FrameKind kind, const std::string& message, std::span<const std::string_view> tensors = {});
  bool ReadFrame();
  bool Read(v1::DecodeResponse* response);  // false as well where it is no answer
  // Reads until the server's last frame; its status, or UNAVAILABLE where the socket closes without one.
  absl::Status End();
  // Whether the server closes the socket in time.
  bool HangsUp(std::chrono::milliseconds time = std::chrono::seconds(10)) const;

  channel::FrameReader& reader() { return *reader_; }
  channel::FrameWriter& writer() { return *writer_; }
  channel::Header& header() { return *reinterpret_cast<channel::Header*>(memory_); }
  uint8_t* memory() { return memory_; }
  size_t bytes() const { return channel::MemoryBytes(ring_bytes_); }
  int socket() const { return socket_; }

 private:
  RawChannel(int socket, uint8_t* memory, uint32_t ring_bytes);

  const int socket_;
  uint8_t* const memory_;
  const uint32_t ring_bytes_;
  std::unique_ptr<channel::FrameReader> reader_;
  std::unique_ptr<channel::FrameWriter> writer_;
};

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_CHANNEL_RAW_CHANNEL_H_
