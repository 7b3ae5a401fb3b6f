// The plug-in beside two GPUs, as llama.cpp's scheduler sees them: layers lie on them and the KV cache in RAM (-nkvo).
// They are fake. Their memory is plain, but no host's; ggml's CPU backend computes for them; what is copied to them and
// from them is counted.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engines/llama.cpp/ggml/node.h"
#include "engines/llama.cpp/ggml/origin.h"
#include "engines/llama.cpp/tests/fixtures/context_pair.h"
#include "engines/llama.cpp/tests/fixtures/loaded_plugin.h"
#include "ggml-backend-impl.h"
#include "llama.h"

namespace seine::llama {
namespace {

constexpr size_t kGpus = 2;
int64_t bytes_copied = 0;                            // to all GPUs, and from them
std::map<ggml_op, int64_t> nodes_of_gpu[kGpus];      // computed by each
ggml_backend_device gpus[kGpus];                     // filled by MakeGpu
ggml_backend_buffer_type memory[kGpus], pinned_ram;  // pinned: what CUDA has in place of the CPU's buffers

ggml_backend_buffer_t OnCpu(ggml_backend_buffer_t buffer) {
  return static_cast<ggml_backend_buffer_t>(buffer->context);
}
char* DataOf(const ggml_tensor* tensor, size_t offset) { return static_cast<char*>(tensor->data) + offset; }

ggml_backend_buffer_t Allocate(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_i calls = {};
  calls.free_buffer = [](ggml_backend_buffer_t b) { ggml_backend_buffer_free(OnCpu(b)); };
  calls.get_base = [](ggml_backend_buffer_t b) { return ggml_backend_buffer_get_base(OnCpu(b)); };
  calls.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor* to, uint8_t value, size_t offset, size_t count) {
    std::memset(DataOf(to, offset), value, count);
  };
  calls.set_tensor = [](ggml_backend_buffer_t, ggml_tensor* to, const void* data, size_t offset, size_t count) {
    std::memcpy(DataOf(to, offset), data, count);
    bytes_copied += static_cast<int64_t>(count);
  };
  calls.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor* from, void* data, size_t offset, size_t count) {
    std::memcpy(data, DataOf(from, offset), count);
    bytes_copied += static_cast<int64_t>(count);
  };
  calls.clear = [](ggml_backend_buffer_t b, uint8_t value) { ggml_backend_buffer_clear(OnCpu(b), value); };
  return ggml_backend_buffer_init(type, calls, ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size),
                                  size);
}

ggml_backend_buffer_t AllocatePinned(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
  buffer->buft = type;
  return buffer;
}

size_t NumberOf(ggml_backend_dev_t device) { return device - gpus; }
const char* NameOf(ggml_backend_dev_t device) { return NumberOf(device) == 0 ? "Fake0" : "Fake1"; }
ggml_backend_dev_t Cpu() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }
void MemoryOf(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = size_t{1} << 33; }

ggml_status ComputeOnGpu(ggml_backend_t backend, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ++nodes_of_gpu[NumberOf(backend->device)][ggml_graph_node(graph, i)->op];
  }
  return ggml_backend_graph_compute(static_cast<ggml_backend_t>(backend->context), graph);
}

ggml_backend_t InitGpu(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {0x46, 0x61, 0x6b, 0x65};
  ggml_backend_i calls = {};
  calls.get_name = [](ggml_backend_t backend) { return NameOf(backend->device); };
  calls.free = [](ggml_backend_t backend) {
    ggml_backend_free(static_cast<ggml_backend_t>(backend->context));
    delete backend;
  };
  calls.graph_compute = ComputeOnGpu;
  return new ggml_backend{&guid, calls, device, ggml_backend_dev_init(Cpu(), nullptr)};
}

void MakeGpu(ggml_backend_reg_t registry, size_t number) {
  ggml_backend_device& gpu = gpus[number];
  gpu.reg = registry;
  gpu.iface.get_name = NameOf;
  gpu.iface.get_description = NameOf;
  gpu.iface.get_memory = MemoryOf;
  gpu.iface.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
  gpu.iface.get_props = [](ggml_backend_dev_t device, ggml_backend_dev_props* props) {
    *props = {};
    props->name = props->description = NameOf(device);
    props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
    MemoryOf(device, &props->memory_free, &props->memory_total);
    props->caps.host_buffer = true;
  };
  gpu.iface.init_backend = InitGpu;
  gpu.iface.get_buffer_type = [](ggml_backend_dev_t device) { return &memory[NumberOf(device)]; };
  gpu.iface.get_host_buffer_type = [](ggml_backend_dev_t) { return &pinned_ram; };
  gpu.iface.supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) {
    return ggml_backend_dev_supports_op(Cpu(), op);
  };
  gpu.iface.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type == &memory[NumberOf(device)];
  };
  // As CUDA's: what is worth a copy of its weights.
  gpu.iface.offload_op = [](ggml_backend_dev_t, const ggml_tensor* op) {
    return op->op == GGML_OP_MUL_MAT && op->ne[1] >= 32;
  };
  ggml_backend_buffer_type& type = memory[number];
  type.device = &gpu;
  type.iface.get_name = [](ggml_backend_buffer_type_t of) { return NameOf(of->device); };
  type.iface.alloc_buffer = Allocate;
  type.iface.get_alignment = [](ggml_backend_buffer_type_t) { return size_t{64}; };
  type.iface.is_host = [](ggml_backend_buffer_type_t) { return false; };
}

void HaveGpus() {
  static ggml_backend_reg registry;
  if (registry.api_version != 0) return;
  (void)ThePlugin();
  registry.api_version = GGML_BACKEND_API_VERSION;
  registry.iface.get_name = [](ggml_backend_reg_t) { return "Fake"; };
  registry.iface.get_device_count = [](ggml_backend_reg_t) { return kGpus; };
  registry.iface.get_device = [](ggml_backend_reg_t, size_t i) { return &gpus[i]; };
  registry.iface.get_proc_address = [](ggml_backend_reg_t, const char*) -> void* { return nullptr; };
  for (size_t i = 0; i < kGpus; ++i) MakeGpu(&registry, i);
  pinned_ram = *ggml_backend_cpu_buffer_type();
  pinned_ram.device = &gpus[0];
  pinned_ram.iface.get_name = [](ggml_backend_buffer_type_t) { return "Fake_Host"; };
  pinned_ram.iface.alloc_buffer = AllocatePinned;
  ggml_backend_register(&registry);
}

constexpr int kLayers = 4, kUbatch = 512;
const ModelShape kShape = {.layers = kLayers, .embedding = 256, .q_heads = 4, .kv_heads = 2};
// Bytes of a cell's keys and values in all layers.
constexpr int64_t kCellBytes = int64_t{kLayers} * 2 * 2 * 64 * sizeof(ggml_fp16_t);

// Where attention of some tokens was computed, and what was copied meanwhile.
struct Seen {
  int64_t by_seine = 0, prompts_by_seine = 0, by_gpus = 0, copied = 0;
  std::vector<float> logits;
};

class Offload : public ::testing::Test {
 protected:
  // `on_gpus`: of the model's layers, the last ones.
  void Load(int on_gpus) {
    HaveGpus();
    const std::string path = ::testing::TempDir() + "seine-offload-" + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(WriteRandomModel(kShape, 3, path));
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = on_gpus + 1;  // and the output
    model_.reset(llama_model_load_from_file(path.c_str(), params));
    std::filesystem::remove(path);
    ASSERT_NE(model_, nullptr);
    for (const Mode mode : {kPlain, kSeine}) {
      llama_context_params of = llama_context_default_params();
      of.n_ctx = 4096;
      of.n_batch = of.n_ubatch = kUbatch;
      of.n_threads = of.n_threads_batch = 1;
      of.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
      of.offload_kqv = false;
      ThePlugin().set_mode(mode);
      contexts_.emplace_back(llama_init_from_model(model_.get(), of), &llama_free);
      ASSERT_NE(contexts_.back(), nullptr);
    }
  }
  // In the context of that mode.
  Seen Decode(Mode mode, std::vector<llama_token> tokens) {
    const auto count = [](const char* name) { return ThePlugin().Count(name); };
    Seen seen = {-count("answered"), -count("prompt_answered"), 0, -bytes_copied, {}};
    for (auto& nodes : nodes_of_gpu) nodes.clear();
    ThePlugin().set_mode(mode);
    llama_context* context = contexts_[mode == kPlain ? 0 : 1].get();
    EXPECT_EQ(llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))), 0);
    const float* logits = llama_get_logits_ith(context, -1);
    seen.by_seine += count("answered");
    seen.prompts_by_seine += count("prompt_answered");
    seen.copied += bytes_copied;
    for (auto& nodes : nodes_of_gpu) seen.by_gpus += nodes[GGML_OP_FLASH_ATTN_EXT];
    seen.logits.assign(logits, logits + kShape.vocabulary);
    return seen;
  }
  std::vector<llama_token> Tokens(int count) {
    std::vector<llama_token> tokens(count);
    for (llama_token& token : tokens) token = static_cast<llama_token>(rng_() % kShape.vocabulary);
    return tokens;
  }
  static double Difference(const Seen& a, const Seen& b) {
    double worst = 0;
    for (size_t i = 0; i < a.logits.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(a.logits[i]) - b.logits[i]));
    }
    return worst;
  }

  Model model_{nullptr, &llama_model_free};
  std::vector<Context> contexts_;
  std::mt19937 rng_{7};
};

TEST_F(Offload, DecodingStaysWhereTheCacheLiesAndPromptsGoToTheGpus) {
  Load(kLayers);
  int64_t copied_at_first = 0;
  for (int64_t cells = 0; cells < 3 * kUbatch;) {
    SCOPED_TRACE(cells);
    const std::vector<llama_token> prompt = Tokens(kUbatch), next = Tokens(1);
    const Seen plain_prompt = Decode(kPlain, prompt), prompts = Decode(kSeine, prompt);
    cells += kUbatch;
    EXPECT_EQ(plain_prompt.by_gpus, kLayers);
    EXPECT_EQ(prompts.by_gpus, kLayers);
    EXPECT_EQ(prompts.prompts_by_seine, 0);
    EXPECT_EQ(prompts.copied, plain_prompt.copied);
    EXPECT_LT(Difference(plain_prompt, prompts), kSame);

    const Seen plain = Decode(kPlain, next), seine = Decode(kSeine, next);
    ++cells;
    EXPECT_EQ(plain.by_gpus, kLayers);
    EXPECT_GE(plain.copied, cells * kCellBytes) << "the whole cache, at each step";
    EXPECT_EQ(seine.by_seine, kLayers) << ThePlugin().report();
    EXPECT_EQ(seine.by_gpus, 0);
    if (copied_at_first == 0) copied_at_first = seine.copied;
    EXPECT_EQ(seine.copied, copied_at_first) << "as much, however long the cache is";
    EXPECT_LT(seine.copied, 64 * kCellBytes);
    EXPECT_LT(Difference(plain, seine), kSame);
  }
  for (const auto& nodes : nodes_of_gpu) EXPECT_GT(nodes.at(GGML_OP_MUL_MAT), 0) << "both have layers";
}

TEST_F(Offload, LayersThatLieOnTheCpuKeepTheirPrompts) {
  constexpr int kOnGpus = 2;
  Load(kOnGpus);
  for (int i = 0; i < 2; ++i) {
    const std::vector<llama_token> prompt = Tokens(kUbatch), next = Tokens(1);
    const Seen plain_prompt = Decode(kPlain, prompt), prompts = Decode(kSeine, prompt);
    EXPECT_EQ(prompts.by_gpus, kOnGpus);
    EXPECT_EQ(prompts.prompts_by_seine, kLayers - kOnGpus);
    EXPECT_LT(Difference(plain_prompt, prompts), kSame);
    const Seen plain = Decode(kPlain, next), seine = Decode(kSeine, next);
    EXPECT_EQ(seine.by_seine, kLayers);
    EXPECT_EQ(seine.by_gpus, 0);
    EXPECT_LT(Difference(plain, seine), kSame);
  }
}

TEST_F(Offload, FactorsOfFrequenciesAreReadWhereTheyLie) {
  HaveGpus();
  std::vector<double> inv_freq;
  for (ggml_backend_buffer_type_t type : {ggml_backend_cpu_buffer_type(), &memory[1]}) {
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(ggml_init({1 << 16, nullptr, true}), &ggml_free);
    ggml_tensor* rows = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 64, 2, 3);
    ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 3);
    ggml_tensor* factors = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 32);
    const ggml_tensor* turned =
        ggml_rope_ext(context.get(), rows, positions, factors, 64, GGML_ROPE_TYPE_NORMAL, 8192, 500000, 1, 0, 1, 32, 1);
    EXPECT_FALSE(RopeOf(turned).stated()) << "nothing is there yet";
    const std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type), &ggml_backend_buffer_free);
    std::vector<float> values(32);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i);
    ggml_backend_tensor_set(factors, values.data(), 0, ggml_nbytes(factors));
    const Rope rope = RopeOf(turned);
    ASSERT_EQ(rope.inv_freq.size(), 32u);
    EXPECT_NEAR(rope.inv_freq[1], std::pow(500000., -2. / 64) / 2, 1e-6);
    if (inv_freq.empty()) inv_freq = rope.inv_freq;
    EXPECT_EQ(rope.inv_freq, inv_freq);
  }
}

}  // namespace
}  // namespace seine::llama
