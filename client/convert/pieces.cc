#include "client/convert/pieces.h"

#include <algorithm>

#include "client/convert/convert.h"

namespace seine::client {
namespace {

// Large enough that a piece's cost is its bytes; small enough that progress moves and buffers stay modest.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int64_t kPieceOverheadBytes = 4096;  // handle, shapes and framing beside the tensors

// Rows [first, first + count) of a tensor, those of them that it has; absent where it has none.
ConstTensor Part(const ConstTensor& tensor, int64_t first, int64_t count, int64_t row_bytes) {
  const int64_t begin = std::max<int64_t>(0, first), end = first + count;
  if (begin >= end) return {};
  ConstTensor part = tensor;
  part.shape[0] = end - begin;
  part.data = static_cast<const char*>(tensor.data) + begin * row_bytes;
  return part;
}

}  // namespace

int64_t PieceBytes(int64_t max_message_bytes) {
  const int64_t limit = max_message_bytes > 0 ? max_message_bytes - kPieceOverheadBytes : kPieceBytes;
  return std::max<int64_t>(1, std::min(limit, kPieceBytes));
}

absl::Status ForEachPiece(const AppendItem& item, int64_t piece_bytes,
                          const std::function<bool(const AppendItem&)>& send) {
  size_t key_bytes = 0, value_bytes = 0, query_bytes = 0;
  const bool with_values = !IsAbsent(item.values), with_queries = !IsAbsent(item.queries);
  absl::Status status = CheckTensor("keys", item.keys, &key_bytes);
  if (with_values) status.Update(CheckTensor("values", item.values, &value_bytes));
  if (with_queries) status.Update(CheckTensor("queries", item.queries, &query_bytes));
  if (!status.ok()) return status;
  if (item.keys.shape.size() != 3) {
    return absl::InvalidArgumentError("keys.shape: must be [tokens, num_kv_heads, head_dim]");
  }
  if (with_values && item.values.shape != item.keys.shape) {
    return absl::InvalidArgumentError("values.shape: must equal keys.shape");
  }
  const int64_t tokens = item.keys.shape[0];
  const int64_t asked = with_queries && item.queries.shape.size() == 3 ? item.queries.shape[0] : 0;
  if (with_queries && (asked < 1 || asked > tokens)) {
    return absl::InvalidArgumentError("queries.shape: must be [1 to tokens, num_q_heads, head_dim]");
  }
  const int64_t key_row = tokens > 0 ? key_bytes / tokens : 0;
  const int64_t value_row = with_values && tokens > 0 ? value_bytes / tokens : 0;
  const int64_t query_row = asked > 0 ? query_bytes / asked : 0;
  const int64_t step = std::max<int64_t>(1, piece_bytes / std::max<int64_t>(1, key_row + value_row + query_row));
  AppendItem piece = item;
  for (int64_t first = 0; first == 0 || first < tokens; first += step) {
    const int64_t count = std::min(step, tokens - first);
    piece.position = item.position + first;
    piece.keys.shape[0] = count;
    piece.keys.data = static_cast<const char*>(item.keys.data) + first * key_row;
    if (with_values) {
      piece.values.shape[0] = count;
      piece.values.data = static_cast<const char*>(item.values.data) + first * value_row;
    }
    if (with_queries) piece.queries = Part(item.queries, first - (tokens - asked), count, query_row);
    if (!send(piece)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace seine::client
