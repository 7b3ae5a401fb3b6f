// A kernel that cannot stay in registers: the build's gate (kernels/cuda/nvcc_report.sh) must refuse it.
__global__ void Spills(float* values, int n) {
  float local[64];
  for (int i = 0; i < 64; ++i) local[i] = values[i * 32 + threadIdx.x];
  for (int i = 0; i < n; ++i) local[(i * 7) % 64] += local[(i * 13) % 64];
  for (int i = 0; i < 64; ++i) values[i * 32 + threadIdx.x] = local[i];
}
