// The Lloyd-Max quantiser of one coordinate's magnitude in a random direction of R^m (ParisKV, appendix B: m = 8, 3
// bits).
#ifndef SEINE_KERNELS_CODECS_RSQ_LLOYD_MAX_H_
#define SEINE_KERNELS_CODECS_RSQ_LLOYD_MAX_H_

#include <array>

namespace seine {

struct MagnitudeQuantiser {
  std::array<float, 7> thresholds;  // tau, ascending; bin t = number of thresholds strictly below |u|
  std::array<float, 8> levels;      // a[t], the conditional means
};

// Fixed point of tau_t = (a_t + a_{t+1}) / 2, a_t = E[|u| : tau_{t-1} < |u| <= tau_t] for u^2 ~ Beta(1/2, (m-1)/2), m
// = 8. Computed once, in double; thread-safe.
const MagnitudeQuantiser& RsqQuantiser();

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_RSQ_LLOYD_MAX_H_
