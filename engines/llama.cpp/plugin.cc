// libggml-seine.so: a backend that ggml loads beside its CPU's. It takes attention over long caches and what writes
// into them; the CPU backend keeps everything else. docs/engines.md says how programs load it.
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "engines/llama.cpp/cells/attention.h"
#include "engines/llama.cpp/ggml/cache_facts.h"
#include "engines/llama.cpp/ggml/ggml_calls.h"
#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/ggml/origin.h"
#include "engines/llama.cpp/node_computer.h"
#include "engines/llama.cpp/profiles/calibration.h"
#include "engines/llama.cpp/remote/remote_attention.h"
#include "engines/llama.cpp/report.h"
#include "engines/llama.cpp/settings.h"
#include "ggml-backend-impl.h"

namespace seine::llama {

namespace {

ggml_backend_dev_t CpuDevice() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

NodeComputer* Of(ggml_backend_t backend) { return static_cast<NodeComputer*>(backend->context); }

constexpr char kNoFlashAttention[] = "flash attention is off, which -fa on turns on";

bool IsRemote() { return !settings().endpoint.empty(); }

ggml_status Compute(ggml_backend_t backend, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* node = ggml_graph_node(graph, i);
    if ((node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
    ggml_status status = GGML_STATUS_SUCCESS;
    if (node->op == GGML_OP_FLASH_ATTN_EXT) status = Of(backend)->Attend(node);
    if (node->op == GGML_OP_SET_ROWS) status = Of(backend)->SetRows(node);
    if (node->op == GGML_OP_ROPE || node->op == GGML_OP_CPY) status = Of(backend)->Shift(node);
    if (status != GGML_STATUS_SUCCESS) return status;
  }
  return GGML_STATUS_SUCCESS;
}

// With a server, the engine's cache may lack cells: every attention node over it is seen, also those that its own
// kernel computes.
bool SupportsRemote(const ggml_tensor* op) {
  if (op->op == GGML_OP_SET_ROWS) return IsKeyCache(RootOf(op)) || IsValueCache(RootOf(op));
  if (!IsKeyCache(RootOf(op->src[1]))) return false;
  if (const AttentionNode node(op); node.Unfit() == nullptr) Learn(node);
  return true;
}

// A node over `keys` that llama.cpp attends by itself. It is said when it is planned, and counted when it is computed:
// by the write of keys that comes with it.
void Refuse(const ggml_tensor* keys, int64_t num_tokens, int64_t num_cells, const char* why) {
  if (Calibration* const calibration = Calibration::Get()) calibration->Refused(why);
  const ggml_tensor* root = CacheOf(keys);
  if (root->data == nullptr || !IsKeyCache(root) || root->ne[1] < settings().min_kv) return;
  SayLeft(why);
  LearnRefusal(root->data, {why, num_tokens <= kMostTokens && num_cells >= settings().min_kv});
}

bool Supports(ggml_backend_dev_t, const ggml_tensor* op) {
  Calibration* const calibration = Calibration::Get();
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    case GGML_OP_FLASH_ATTN_EXT: {
      if (IsRemote()) return mode() != Mode::kPlain && SupportsRemote(op);
      const AttentionNode node(op);
      if (mode() == Mode::kPlain) return false;
      if (const char* why = node.Unfit()) {
        Refuse(node.keys, node.num_tokens, node.num_cells, why);
        return false;
      }
      Learn(node);
      if (calibration != nullptr) return calibration->measuring();
      if (node.num_tokens > kMostTokens) {
        // Where the cache stays in RAM (-nkvo), a GPU is worth its copy.
        if (ComesFromGpu(node.queries)) {
          SayOnce("prompts of layers that lie on a GPU are left to it");
          return false;
        }
        return settings().prompt != "off" && mode() != Mode::kDecode;
      }
      return node.num_cells >= settings().min_kv;
    }
    case GGML_OP_MUL_MAT:
      // Keys are multiplied by themselves where flash attention is off: no node of ours is to come.
      if (!IsRemote() && mode() != Mode::kPlain && IsKeyCache(RootOf(op->src[0]))) {
        Refuse(op->src[0], op->src[1]->ne[1], op->src[0]->ne[1], kNoFlashAttention);
      }
      return false;
    case GGML_OP_SET_ROWS: {
      if (IsRemote()) return mode() != Mode::kPlain && SupportsRemote(op);
      const ggml_tensor* root = RootOf(op);
      if (mode() == Mode::kPlain || !(IsKeyCache(root) || IsValueCache(root))) return false;
      return calibration != nullptr ? calibration->measuring() : root->ne[1] >= settings().min_kv;
    }
    // A shift of the context turns keys where they lie. Quantised ones are turned outside, and copied back.
    case GGML_OP_ROPE:
    case GGML_OP_CPY:
      return mode() != Mode::kPlain && calibration == nullptr && op->view_src != nullptr && IsKeyCache(RootOf(op));
    default:
      return false;
  }
}

const char* Name(ggml_backend_t) { return "Seine"; }
void Free(ggml_backend_t backend) {
  delete Of(backend);
  delete backend;
}

ggml_guid_t Guid() {
  static ggml_guid guid = {0x53, 0x65, 0x69, 0x6e, 0x65, 0x20, 0x4b, 0x56,
                           0x2d, 0x63, 0x61, 0x63, 0x68, 0x65, 0x20, 0x31};
  return &guid;
}

ggml_backend_t Init(ggml_backend_dev_t device, const char*) {
  ggml_backend_i calls = {};
  calls.get_name = Name;
  calls.free = Free;
  calls.graph_compute = Compute;
  NodeComputer* computer = nullptr;
  if (IsRemote()) {
    computer = new RemoteAttention();
  } else {
    computer = new Attention();
  }
  return new ggml_backend{Guid(), calls, device, computer};
}

const char* DeviceName(ggml_backend_dev_t) { return "Seine"; }
const char* Description(ggml_backend_dev_t) { return "attention over long KV caches by an index"; }
void Memory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type Type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }
void Properties(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = DeviceName(device);
  props->description = Description(device);
  props->type = Type(device);
  props->memory_free = props->memory_total = 0;
  props->caps = {};
}
ggml_backend_buffer_type_t BufferType(ggml_backend_dev_t) { return ggml_backend_dev_buffer_type(CpuDevice()); }
bool SupportsBuffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); }

const char* RegistryName(ggml_backend_reg_t) { return "Seine"; }
size_t DeviceCount(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t Device(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device device = [registry] {
    ggml_backend_device made = {};
    made.iface.get_name = DeviceName;
    made.iface.get_description = Description;
    made.iface.get_memory = Memory;
    made.iface.get_type = Type;
    made.iface.get_props = Properties;
    made.iface.init_backend = Init;
    made.iface.get_buffer_type = BufferType;
    made.iface.supports_op = Supports;
    made.iface.supports_buft = SupportsBuffer;
    made.reg = registry;
    return made;
  }();
  return &device;
}

void SetThreads(ggml_backend_t backend, int count) { Of(backend)->team().SetThreads(count); }
void SetModeByNumber(int number) { SetMode(static_cast<Mode>(number)); }
const char* ReportText() {
  static thread_local std::string text;
  text = Report::Get().Json();
  return text.c_str();
}

void* Address(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(&SetThreads);
  if (std::strcmp(name, "seine_set_mode") == 0) return reinterpret_cast<void*>(&SetModeByNumber);
  if (std::strcmp(name, "seine_set_top_k") == 0) return reinterpret_cast<void*>(&SetTopK);
  if (std::strcmp(name, "seine_set_prompt_mass") == 0) return reinterpret_cast<void*>(&SetPromptMass);
  if (std::strcmp(name, "seine_report") == 0) return reinterpret_cast<void*>(&ReportText);
  return nullptr;
}

std::string WhatItDoes() {
  if (IsRemote()) return absl::StrCat("attention is answered by the server at ", settings().endpoint);
  if (Calibration::Get() != nullptr) return "a profile is measured, and llama.cpp attends by itself";
  return absl::StrCat("tokens that attend over ", settings().min_kv,
                      " cells or more are answered by an index, others by llama.cpp itself");
}

// nullptr: the ggml in which `caller` lies is none that is served. stderr has the reason, or what is to come.
ggml_backend_reg_t Registry(const void* caller) {
  const Ggml& ggml = BindGgml(caller);
  if (!ggml.refusal.empty()) {
    SayOnce(absl::StrCat(ggml.file, " does not take the plug-in: ", ggml.refusal));
    return nullptr;
  }
  SayOnce(absl::StrCat("ggml ", ggml.version, ", interface ", ggml.interface, ": ", WhatItDoes()));
  static ggml_backend_reg registry = {ggml.interface, {RegistryName, DeviceCount, Device, Address}, nullptr};
  return &registry;
}

// For programs that ask before they run an engine: seine_kv.llama does.
const char* PluginText() {
  static thread_local std::string text;
  const Ggml& ggml = TheGgml();
  text = nlohmann::json{{"version", SEINE_VERSION}, {"interfaces", kInterfaces}, {"min_kv", settings().min_kv},
                        {"loaded_by", ggml.file},   {"ggml", ggml.version},      {"interface", ggml.interface},
                        {"refusal", ggml.refusal}}
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.c_str();
}

}  // namespace

}  // namespace seine::llama

extern "C" {
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  return seine::llama::Registry(__builtin_return_address(0));
}
__attribute__((visibility("default"))) int ggml_backend_score() { return 1; }
__attribute__((visibility("default"))) const char* seine_plugin() { return seine::llama::PluginText(); }
__attribute__((visibility("default"))) const char* seine_unfit(int head_dim, int value_head_dim, int num_q_heads,
                                                               int num_kv_heads) {
  return seine::llama::UnfitShape(head_dim, value_head_dim, num_q_heads, num_kv_heads);
}
}
