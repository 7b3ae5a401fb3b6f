// A graph of one custom node makes ggml's threads run our tasks: OpenMP's or its pool's, as it was built.
#include "engines/llama.cpp/ggml/team.h"

namespace seine::llama {

Team::Team() {
  cpu_ = ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), nullptr);
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
  set_threads_ = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
  context_ = ggml_init({.mem_size = 1 << 16, .mem_buffer = nullptr, .no_alloc = true});
  static float nothing;
  ggml_tensor* node =
      ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, &Team::Work, GGML_N_TASKS_MAX, this);
  node->data = &nothing;
  work_ = ggml_new_graph_custom(context_, 8, false);
  ggml_build_forward_expand(work_, node);
  node_ = ggml_new_graph_custom(context_, 8, false);
}

Team::~Team() {
  ggml_free(context_);
  ggml_backend_free(cpu_);
}

void Team::SetThreads(int count) {
  threads_ = count;
  SetCpuThreads(count);
}

void Team::SetCpuThreads(int count) {
  if (set_threads_ != nullptr) set_threads_(cpu_, count);
}

void Team::Work(ggml_tensor*, int, int, void* team) {
  auto* self = static_cast<Team*>(team);
  for (int i; (i = self->next_.fetch_add(1, std::memory_order_relaxed)) < self->count_;) (*self->fn_)(i);
}

void Team::Run(int count, const std::function<void(int)>& fn) {
  if (count == 1 || threads_ == 1) {
    for (int i = 0; i < count; ++i) fn(i);
    return;
  }
  fn_ = &fn;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  ggml_backend_graph_compute(cpu_, work_);
}

ggml_status Team::Compute(ggml_tensor* node, bool alone) {
  ggml_graph_clear(node_);
  ggml_graph_add_node(node_, node);
  if (alone) SetCpuThreads(1);
  const ggml_status status = ggml_backend_graph_compute(cpu_, node_);
  if (alone) SetCpuThreads(threads_);
  return status;
}

}  // namespace seine::llama
