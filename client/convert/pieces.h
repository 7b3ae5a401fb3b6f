// Long appends cut along tokens into messages. Internal to client/; knows neither protobuf nor gRPC.
#ifndef SEINE_CLIENT_CONVERT_PIECES_H_
#define SEINE_CLIENT_CONVERT_PIECES_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/types.h"

namespace seine::client {

// The tensors of one piece, in bytes, at a server whose messages are limited to `max_message_bytes` (0: not known).
int64_t PieceBytes(int64_t max_message_bytes);

// Calls `send` with consecutive pieces of `item`, each of at most `piece_bytes` (but at least one token); an item
// without tokens is one piece. `send` returns false to stop. INVALID_ARGUMENT naming the tensor that cannot be cut.
absl::Status ForEachPiece(const AppendItem& item, int64_t piece_bytes,
                          const std::function<bool(const AppendItem&)>& send);

}  // namespace seine::client

#endif  // SEINE_CLIENT_CONVERT_PIECES_H_
