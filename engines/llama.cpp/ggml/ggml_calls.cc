// Each function of ggml that the plug-in calls has a line below. A call without one is a linker's error.
#include "engines/llama.cpp/ggml/ggml_calls.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engines/llama.cpp/ggml/ggml_layout.h"
#include "ggml-backend-impl.h"

namespace seine::llama {

namespace {

// A function's place, in a list of all.
class BoundCall {
 public:
  explicit BoundCall(const char* name) : name_(name), next_(first_) { first_ = this; }
  BoundCall(const BoundCall&) = delete;

  void* address() const { return address_; }
  // Returns the name of a function that is missing; nullptr: there is none.
  static const char* BindAll() {
    for (BoundCall* call = first_; call != nullptr; call = call->next_) {
      call->address_ = FindInGgml(call->name_);
      if (call->address_ == nullptr) return call->name_;
    }
    return nullptr;
  }

 private:
  static BoundCall* first_;
  const char* const name_;
  void* address_ = nullptr;
  BoundCall* const next_;
};
BoundCall* BoundCall::first_ = nullptr;

void* library = nullptr;          // dlopen's handle
const link_map* bound = nullptr;  // of what is served

}  // namespace

}  // namespace seine::llama

#define SEINE_GGML_CALL(result, name, parameters, arguments) \
  static seine::llama::BoundCall bound_##name(#name);        \
  result name parameters { return reinterpret_cast<decltype(&name)>(bound_##name.address()) arguments; }

extern "C" {
SEINE_GGML_CALL(void*, ggml_backend_buffer_get_base, (ggml_backend_buffer_t buffer), (buffer))
SEINE_GGML_CALL(size_t, ggml_backend_buffer_get_size, (ggml_backend_buffer_t buffer), (buffer))
SEINE_GGML_CALL(ggml_backend_buffer_type_t, ggml_backend_buffer_get_type, (ggml_backend_buffer_t buffer), (buffer))
SEINE_GGML_CALL(ggml_backend_buffer_usage, ggml_backend_buffer_get_usage, (ggml_backend_buffer_t buffer), (buffer))
SEINE_GGML_CALL(bool, ggml_backend_buffer_is_host, (ggml_backend_buffer_t buffer), (buffer))
SEINE_GGML_CALL(ggml_backend_dev_t, ggml_backend_buft_get_device, (ggml_backend_buffer_type_t type), (type))
SEINE_GGML_CALL(bool, ggml_backend_buft_is_host, (ggml_backend_buffer_type_t type), (type))
SEINE_GGML_CALL(ggml_backend_reg_t, ggml_backend_dev_backend_reg, (ggml_backend_dev_t device), (device))
SEINE_GGML_CALL(ggml_backend_buffer_type_t, ggml_backend_dev_buffer_type, (ggml_backend_dev_t device), (device))
SEINE_GGML_CALL(ggml_backend_dev_t, ggml_backend_dev_by_type, (enum ggml_backend_dev_type type), (type))
SEINE_GGML_CALL(enum ggml_backend_dev_type, ggml_backend_dev_type, (ggml_backend_dev_t device), (device))
SEINE_GGML_CALL(ggml_backend_t, ggml_backend_dev_init, (ggml_backend_dev_t device, const char* with), (device, with))
SEINE_GGML_CALL(void, ggml_backend_free, (ggml_backend_t backend), (backend))
SEINE_GGML_CALL(ggml_backend_dev_t, ggml_backend_get_device, (ggml_backend_t backend), (backend))
SEINE_GGML_CALL(ggml_status, ggml_backend_graph_compute, (ggml_backend_t backend, ggml_cgraph* graph), (backend, graph))
SEINE_GGML_CALL(void*, ggml_backend_reg_get_proc_address, (ggml_backend_reg_t registry, const char* name),
                (registry, name))
SEINE_GGML_CALL(void, ggml_backend_tensor_get, (const ggml_tensor* tensor, void* data, size_t offset, size_t size),
                (tensor, data, offset, size))
SEINE_GGML_CALL(void, ggml_build_forward_expand, (ggml_cgraph * graph, ggml_tensor* tensor), (graph, tensor))
SEINE_GGML_CALL(ggml_tensor*, ggml_custom_4d,
                (ggml_context * context, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                 ggml_tensor** args, int n_args, ggml_custom_op_t function, int n_tasks, void* data),
                (context, type, ne0, ne1, ne2, ne3, args, n_args, function, n_tasks, data))
SEINE_GGML_CALL(void, ggml_fp32_to_fp16_row, (const float* from, ggml_fp16_t* to, int64_t n), (from, to, n))
SEINE_GGML_CALL(void, ggml_free, (ggml_context * context), (context))
SEINE_GGML_CALL(void, ggml_graph_add_node, (ggml_cgraph * graph, ggml_tensor* tensor), (graph, tensor))
SEINE_GGML_CALL(void, ggml_graph_clear, (ggml_cgraph * graph), (graph))
SEINE_GGML_CALL(int, ggml_graph_n_nodes, (ggml_cgraph * graph), (graph))
SEINE_GGML_CALL(ggml_tensor*, ggml_graph_node, (ggml_cgraph * graph, int i), (graph, i))
SEINE_GGML_CALL(ggml_context*, ggml_init, (ggml_init_params params), (params))
SEINE_GGML_CALL(size_t, ggml_nbytes, (const ggml_tensor* tensor), (tensor))
SEINE_GGML_CALL(ggml_cgraph*, ggml_new_graph_custom, (ggml_context * context, size_t size, bool grads),
                (context, size, grads))
}

namespace seine::llama {

namespace {

Ggml& Last() {
  static auto* const last = new Ggml{"", "", 0, "no ggml has loaded it"};
  return *last;
}

// Why not; sets what is known.
std::string Bind(const void* caller, Ggml* ggml) {
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 || map == nullptr) {
    return "the library that loads the plug-in cannot be found";
  }
  const bool is_program = map->l_name[0] == '\0';
  ggml->file = is_program ? info.dli_fname : map->l_name;
  if (bound != nullptr && bound != map) {
    return absl::StrCat("the plug-in serves another ggml of this process, ", bound->l_name, ", and one at a time");
  }
  library = dlopen(is_program ? nullptr : map->l_name, RTLD_LAZY | (is_program ? 0 : RTLD_NOLOAD));
  const auto count = reinterpret_cast<decltype(&ggml_backend_reg_count)>(FindInGgml("ggml_backend_reg_count"));
  const auto get = reinterpret_cast<decltype(&ggml_backend_reg_get)>(FindInGgml("ggml_backend_reg_get"));
  if (count == nullptr || get == nullptr) return "ggml's functions are linked into it and not to be found from without";
  if (count() == 0) return "ggml has no backend yet: load that of the CPU first";
  ggml->interface = get(0)->api_version;
  if (const auto version = reinterpret_cast<const char* (*)()>(FindInGgml("ggml_version"))) ggml->version = version();
  if (std::find(std::begin(kInterfaces), std::end(kInterfaces), ggml->interface) == std::end(kInterfaces)) {
    return absl::StrCat("it has version ", ggml->interface, " of ggml's backend interface, and the plug-in serves ",
                        absl::StrJoin(kInterfaces, " and "));
  }
  if (const char* missing = BoundCall::BindAll()) return absl::StrCat("it lacks ", missing);
  if (const char* drift = UnfitLayout()) return absl::StrCat("it is not the ggml that the plug-in knows: ", drift);
  bound = map;
  return "";
}

}  // namespace

void* FindInGgml(const char* name) { return library == nullptr ? nullptr : dlsym(library, name); }

const Ggml& BindGgml(const void* caller) {
  Ggml ggml;
  ggml.refusal = Bind(caller, &ggml);
  return Last() = ggml;
}

const Ggml& TheGgml() { return Last(); }

}  // namespace seine::llama
