// SEINE_CALIBRATE: a profile measured while llama.cpp runs a model. Keys and values come from what is written into the
// cache, queries from the attention nodes; llama.cpp's own kernels compute all of them.
#ifndef SEINE_ENGINES_LLAMA_CPP_PROFILES_CALIBRATION_H_
#define SEINE_ENGINES_LLAMA_CPP_PROFILES_CALIBRATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/ggml/node.h"
#include "ggml.h"
#include "profile/profile.h"
#include "profile/rope.h"

namespace seine::llama {

// The process's. Thread-safe. One context at a time is measured: the first that computes, and when it is freed the next
// of the same model. Errors are said once on stderr, and nothing is measured from then on.
class Calibration {
 public:
  // nullptr: SEINE_CALIBRATE is not set, and the plug-in answers.
  static Calibration* Get();

  // Whether more tokens are wanted. False: the profile is written, or cannot be.
  bool measuring();
  // A GGML_OP_SET_ROWS into a key or value cache, before or after it is computed. `context` tells contexts apart.
  void RecordRows(const void* context, const ggml_tensor* node);
  void RecordQueries(const void* context, const AttentionNode& node);
  void Leave(const void* context);  // it is freed
  // Why an attention node cannot be measured; said at exit if none could be.
  void Refused(const std::string& why);
  // Writes the profile unless that is done; at exit too.
  void Finish();

 private:
  Calibration() = default;

  struct Layer {
    std::vector<float> keys;  // [tokens][KV heads][head_dim], that wait for a whole window
    int64_t first = 0;        // position of the first of them
    Rope rope;
  };

  // All of these under mutex_.
  bool Measures(const void* context) const { return context_ == nullptr || context_ == context; }
  // `first`: a batch's first row of keys, with which measuring begins. False: this context is not measured.
  bool Begin(const void* context, const CacheFacts& facts, bool first = false);
  // Returns true if the layer slides. Where two caches have equally many cells (swa_full), the one whose layers were
  // seen to attend fewer does. Absent: there is another of as many, and neither was seen to.
  std::optional<bool> Slides(const CacheFacts& facts) const;
  void Compare(const CacheFacts& facts, const AttentionNode& node);
  bool ReadPositions(const ggml_tensor* keys);
  bool SameModel(const CacheFacts& facts) const;
  static int NumberOf(const CacheFacts& facts);  // of a layer, as the profile counts it
  bool HoldsRows(const ggml_tensor* rows) const;
  void AddKeys(int layer, const ggml_tensor* rows);
  void AddValues(int layer, const ggml_tensor* rows);
  void AddWaiting(int layer, int64_t count);  // the first of the keys that wait
  void Stop(const std::string& why);
  void Write();

  std::mutex mutex_;
  bool done_ = false;
  std::string refused_;
  const void* context_ = nullptr;  // that is measured
  std::unique_ptr<ProfileBuilder> builder_;
  CacheFacts facts_;                         // of the model's first layer
  std::map<const void*, int64_t> attended_;  // by the last token of the batch: cells of a buffer
  int attending_ = -1;                       // the batch's last layer that was compared
  const void* sliding_ = nullptr;            // the buffer of the layers that slide
  std::vector<Layer> layers_;                // of the model
  std::vector<int32_t> positions_;           // of the batch's tokens, read at its first layer
  std::vector<float> floats_;                // scratch
  int64_t tokens_ = 0;                       // that were measured, of the first layer
};

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_PROFILES_CALIBRATION_H_
