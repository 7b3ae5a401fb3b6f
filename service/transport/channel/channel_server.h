// Makes same-host channels: a second Unix socket, SOCKET.channel, and one thread that takes connections from it, asks
// them for their token and watches the channels' sockets. A client that dies is noticed at once: its step is stopped,
// and its memory, descriptor and thread are given back.
#ifndef SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_SERVER_H_
#define SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_SERVER_H_

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "service/channel_offers.h"
#include "service/core.h"
#include "service/transport/channel/shared_channel.h"
#include "service/transport/sockets/address.h"

namespace seine {

// Start and Stop are called once each, in this order, from one thread.
class ChannelServer {
 public:
  ChannelServer(Core& core, bool polling) : core_(core), polling_(polling) {}
  ~ChannelServer();
  ChannelServer(const ChannelServer&) = delete;
  ChannelServer& operator=(const ChannelServer&) = delete;

  // Before calls come. `address` is where the server listens, and its socket is locked: whatever socket stands beside
  // it is an old one's. core.channels says where channels are made, or why none are.
  void Start(const Address& address);
  // No call comes any more. Ends the channels that are left, and removes the socket.
  void Stop();

 private:
  // Who has connected and not yet shown its token.
  struct Guest {
    int socket;
    std::chrono::steady_clock::time_point since;
    std::string token;
  };
  struct Member {
    int socket;
    std::unique_ptr<SharedChannel> channel;
  };

  absl::Status Listen(const std::string& path);
  void Work();
  bool Accept();             // false: nobody waits
  bool Greet(Guest* guest);  // whether it is dealt with
  absl::Status Admit(const Guest& guest);
  void TurnAway(const Guest& guest, const absl::Status& why);
  void Notify() const;

  Core& core_;
  const bool polling_;
  std::string path_;
  int listener_ = -1, changed_ = -1;  // an event: a channel has something to tell, or the end
  std::atomic<bool> stopping_{false};
  std::vector<Guest> guests_;    // of the thread's
  std::vector<Member> members_;  // of the thread's
  std::thread thread_;
};

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_CHANNEL_CHANNEL_SERVER_H_
