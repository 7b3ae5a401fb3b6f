// The plug-in in this test's process, models of random weights, and contexts of them.
#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_LOADED_PLUGIN_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_LOADED_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engines/llama.cpp/random_model.h"
#include "llama.h"

namespace seine::llama {

enum Mode { kSeine = 0, kPlain = 1 };  // settings.h

struct Plugin {
  void (*set_mode)(int);
  const char* (*report)();
  // A number of the report's.
  double Number(const std::string& name) const;
  int64_t Count(const std::string& name) const { return static_cast<int64_t>(Number(name)); }
};

// Loaded once a process, before the first model. Everything is chosen, from 256 cells on.
const Plugin& ThePlugin();

struct CacheTypes {
  CacheTypes(ggml_type both = GGML_TYPE_F16) : CacheTypes(both, both) {}
  CacheTypes(ggml_type of_k, ggml_type of_v) : k(of_k), v(of_v) {}
  bool quantised() const { return ggml_is_quantized(k) || ggml_is_quantized(v); }
  ggml_type k, v;
};

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

Model MakeModel(const ModelShape& shape);
// On the values of these layers (random_model.h); the model frees it.
llama_adapter_lora* MakeAdapter(llama_model* model, const ModelShape& shape, const std::vector<int>& layers,
                                uint32_t seed);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_LOADED_PLUGIN_H_
