// Turns at reading. gRPC 1.51 reads a connection until it finds it empty, and one whose client is as fast as the server
// never is: forty clients that send PINGs, before any credential, then hold all threads that listen, and a stranger's
// call has no answer for as long as they please. So a connection reads for 50 us at a time, or 500 us of long messages.
// Then it is told that it is empty, and its thread asks the kernel again who has something
// (docs/decisions/service/0133-connections-read-by-turns.md).
//
// gRPC offers no place for that, so this source defines recvmsg() and poll() for the whole process, before libc's. They
// pass on what they are asked, but for connections that take turns.
#ifndef SEINE_SERVICE_TRANSPORT_SOCKETS_READ_TURNS_H_
#define SEINE_SERVICE_TRANSPORT_SOCKETS_READ_TURNS_H_

namespace seine {

// The connection takes turns from now on; only gRPC may read from it. To be told that it is empty while it is not does
// no harm where threads wait by poll(), which tells of it again. Epoll as gRPC uses it would not, so the connection is
// left alone unless the environment's GRPC_POLL_STRATEGY is poll, as in seined unless it polls (--polling). A
// descriptor that is closed keeps its turns; recvmsg() with flags, recv() and read() never take any. Thread-safe.
void TakeTurns(int connection);

}  // namespace seine

#endif  // SEINE_SERVICE_TRANSPORT_SOCKETS_READ_TURNS_H_
