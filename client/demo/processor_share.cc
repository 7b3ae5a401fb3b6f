#include "client/demo/processor_share.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace seine::demo {
namespace {

constexpr double kSeconds = 0.04;  // ten slices of Linux's scheduler

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double ShareOfThisThread() {
  const double wall = Seconds(CLOCK_MONOTONIC), ran = Seconds(CLOCK_THREAD_CPUTIME_ID);
  while (Seconds(CLOCK_THREAD_CPUTIME_ID) < ran + kSeconds) {
  }
  return (Seconds(CLOCK_THREAD_CPUTIME_ID) - ran) / (Seconds(CLOCK_MONOTONIC) - wall);
}

}  // namespace

double MeasureProcessorShare(int threads) {
  std::vector<double> shares(std::max(1, threads));
  std::vector<std::thread> running;
  for (double& share : shares) running.emplace_back([&share] { share = ShareOfThisThread(); });
  double sum = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    running[i].join();
    sum += shares[i];
  }
  return std::min(1.0, sum / static_cast<double>(shares.size()));
}

}  // namespace seine::demo
