// The sample that index/index.h opens with, compiled and run; what it leaves to its reader is made up here.
#include <vector>

#include "index/index.h"

int main() {
  seine::IndexConfig config;
  config.name = "sample";
  config.geometry = {.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const int layer = 1;
  const std::vector<uint16_t> rows(size_t{3000} * 2 * 64, 0x3c00);  // fp16 ones
  const seine::TensorView keys = {rows.data(), 3000, rows.size() * sizeof(uint16_t)};
  const std::vector<float> ones(4 * 64, 1);
  const float* const queries = ones.data();
#include "index_sample.inc"
  return answers.size() == 1 && answers[0].status.ok() ? 0 : 1;
}
