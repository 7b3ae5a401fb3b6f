// See options.h.
#include "kernels/codecs/balanced/options.h"

#include <cmath>
#include <sstream>
#include <string>

#include "kernels/codecs/kinds/balanced.h"

namespace seine {

namespace {

constexpr int kMostCoarseBits = 256;  // of a key's coarse row

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace

CodecFault BalancedFault(const CodecSpec& spec) {
  const double coarse = spec.coarse_bits, total = spec.total_bits;
  if (coarse != .5 && coarse != 1 && coarse != 2) return {"coarse_bits", Text(coarse, " is none of 0.5, 1 and 2")};
  if (coarse * spec.head_dim > kMostCoarseBits) {
    return {"coarse_bits", Text(coarse, " at head_dim ", spec.head_dim, " is more than the ", kMostCoarseBits,
                                " bits of a key that a scan may read")};
  }
  if (!(total >= 1 && total <= 4) || total * 8 != std::floor(total * 8)) {
    return {"total_bits", Text(total, " is no multiple of 0.125 in [1, 4]")};
  }
  if (total <= coarse) return {"total_bits", Text(total, " is not above coarse_bits, ", coarse)};
  const CodeLayout layout = kBalancedTraits.layout(spec);
  if (layout.coarse_bytes + layout.fine_bytes - 1 > kBalancedTraits.most_code_bytes) {
    return {"total_bits", Text(total, " at head_dim ", spec.head_dim, " is more than the ",
                               kBalancedTraits.most_code_bytes, " bytes that a key's code may take")};
  }
  return {};
}

}  // namespace seine
