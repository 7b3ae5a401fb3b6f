// How fast rows are projected on a basis, beside the same product by Eigen, whose matrix product the subspaces' setup
// uses: the machine's rate for that shape.
#ifndef SEINE_BENCH_MEASURES_PROJECTION_H_
#define SEINE_BENCH_MEASURES_PROJECTION_H_

namespace seine::bench {

struct ProjectionRate {
  double project_gflops = 0, gemm_gflops = 0;  // one thread, fp32, rows [512, head_dim] times [head_dim, rank]
};

// The two by turns, best of several.
ProjectionRate MeasureProjection(int head_dim, int rank);

}  // namespace seine::bench

#endif  // SEINE_BENCH_MEASURES_PROJECTION_H_
