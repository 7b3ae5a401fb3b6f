// Exact selection of the largest scores with ties to the lowest place: the same set on every target, without a full
// sort.
#ifndef SEINE_KERNELS_OPS_SELECT_SELECT_H_
#define SEINE_KERNELS_OPS_SELECT_SELECT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace seine {

// Where the cut of the m largest lies: all scores above `value`, and the first `ties` of those equal to it.
struct Cut {
  float value = 0;
  size_t ties = 0;
};

// Cut of the `m` largest of scores[n], 1 <= m <= n, all finite. Values are bisected by counting passes; those between
// the bounds are gathered each time that they have become few, and sorted out at last. `scratch` is reused storage.
Cut FindCut(const float* scores, size_t n, size_t m, std::vector<float>* scratch);

// Places of the `m` largest of scores[n], ascending by place, ties to the lowest. m >= n gives all. Appends to nothing:
// `out` is overwritten.
void SelectLargest(const float* scores, size_t n, size_t m, std::vector<float>* scratch, std::vector<uint32_t>* out);

namespace cpu {

// Smallest and largest of scores[n], n >= 1; how many exceed a value.
void Range(const float* scores, size_t n, float* smallest, float* largest);
size_t CountAbove(const float* scores, size_t n, float value);
// Scores in (low, high] to out, in order; out has room for 16 more, or is `scores` itself.
void GatherBetween(const float* scores, size_t n, float low, float high, float* out);
// Places of the scores that a cut keeps, ascending. Returns how many; out has room for 16 more.
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out);

// The plain twins, which every target equals bit for bit.
namespace scalar {

void Range(const float* scores, size_t n, float* smallest, float* largest);
size_t CountAbove(const float* scores, size_t n, float value);
void GatherBetween(const float* scores, size_t n, float low, float high, float* out);
size_t PlacesAbove(const float* scores, size_t n, const Cut& cut, uint32_t* out);

}  // namespace scalar

}  // namespace cpu
}  // namespace seine

#endif  // SEINE_KERNELS_OPS_SELECT_SELECT_H_
