// A recorded trace: queries and keys (post-RoPE) of some layers of a model, as `python -m seine_kv.trace` writes them.
#ifndef SEINE_CLIENT_DEMO_TRACE_H_
#define SEINE_CLIENT_DEMO_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/types.h"
#include "profile/io/tensor_file.h"

namespace seine::demo {

class Trace {
 public:
  // Errors name the file: those of TensorFile::Open, and INVALID_ARGUMENT where it is no trace or its tensors disagree.
  static absl::StatusOr<Trace> Open(const std::string& path);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_q_heads() const { return num_q_heads_; }
  int num_kv_heads() const { return num_kv_heads_; }
  int head_dim() const { return head_dim_; }
  client::DType dtype() const { return dtype_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t query_start() const { return query_start_; }  // position of the first query
  std::string model() const { return MetadataOr("model", "an unnamed model"); }
  std::string text() const { return MetadataOr("text", "an unnamed text"); }
  const std::vector<int>& model_layers() const { return model_layers_; }

  // Keys of tokens [first, first + count) of a layer, [count, num_kv_heads, head_dim].
  client::ConstTensor Keys(int layer, int64_t first, int64_t count) const;
  // The query of a position >= query_start(), [num_q_heads, head_dim].
  client::ConstTensor Query(int layer, int64_t position) const;
  // The same two as fp32.
  std::vector<float> KeysAsFloat(int layer) const;                     // [num_tokens, num_kv_heads, head_dim]
  std::vector<float> QueryAsFloat(int layer, int64_t position) const;  // [num_q_heads, head_dim]

 private:
  struct Layer {
    TensorFile::Tensor queries, keys;
  };
  explicit Trace(TensorFile file) : file_(std::move(file)) {}
  absl::Status AddLayer(int model_layer);
  std::string MetadataOr(const std::string& key, const std::string& otherwise) const;

  TensorFile file_;
  std::vector<Layer> layers_;
  std::vector<int> model_layers_;
  int num_q_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
  client::DType dtype_ = client::DType::kFloat16;
  int64_t num_tokens_ = 0, query_start_ = 0;
};

}  // namespace seine::demo

#endif  // SEINE_CLIENT_DEMO_TRACE_H_
