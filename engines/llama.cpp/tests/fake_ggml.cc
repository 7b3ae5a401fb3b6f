// A ggml of another build, as far as a plug-in sees it: the real one's functions, but for those below.
#include "engines/llama.cpp/tests/fake_ggml.h"

#include <dlfcn.h>

#include <cstring>

#include "ggml-backend-impl.h"

namespace {

int version = 0;
Drift drift = Drift::kNone;

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ggml_backend_reg_t ggml_backend_reg_get(size_t index) {
  static ggml_backend_reg registry;
  registry = *Real<decltype(ggml_backend_reg_get)>("ggml_backend_reg_get")(index);
  registry.api_version = version;
  return &registry;
}

size_t ggml_backend_reg_count() {
  return drift == Drift::kNoBackend ? 0 : Real<decltype(ggml_backend_reg_count)>("ggml_backend_reg_count")();
}

size_t ggml_tensor_overhead() {
  return Real<decltype(ggml_tensor_overhead)>("ggml_tensor_overhead")() + (drift == Drift::kTensorSize ? 16 : 0);
}

const char* ggml_type_name(ggml_type type) {
  const int moved = type > GGML_TYPE_Q8_0 && drift == Drift::kTypes ? type - 1 : type;
  return Real<decltype(ggml_type_name)>("ggml_type_name")(static_cast<ggml_type>(moved));
}

ggml_tensor* ggml_flash_attn_ext(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v,
                                 ggml_tensor* mask, float scale, float max_bias, float softcap) {
  const auto real = Real<decltype(ggml_flash_attn_ext)>("ggml_flash_attn_ext");
  if (drift == Drift::kAttention) return real(context, q, k, v, mask, scale, softcap, max_bias);
  return real(context, q, k, v, mask, scale, max_bias, softcap);
}

void ggml_backend_dev_get_props(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  if (drift == Drift::kProperties) std::memset(static_cast<void*>(properties), 0, sizeof(*properties) + 8);
  Real<decltype(ggml_backend_dev_get_props)>("ggml_backend_dev_get_props")(device, properties);
}

// As ggml's own loader calls a backend.
bool fake_ggml_load(const char* plugin, int with_version, Drift with_drift) {
  version = with_version, drift = with_drift;
  void* const library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto init = reinterpret_cast<ggml_backend_init_t>(dlsym(library, "ggml_backend_init"));
  const ggml_backend_reg_t registry = init();
  return registry != nullptr && registry->api_version == version;
}
}
