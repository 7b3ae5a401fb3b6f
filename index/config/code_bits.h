// How many bits a balanced code has, by the heads that it is of.
#ifndef SEINE_INDEX_CONFIG_CODE_BITS_H_
#define SEINE_INDEX_CONFIG_CODE_BITS_H_

namespace seine {

// A coordinate: of the plane that is scanned, and of the whole code.
struct CodeBits {
  double coarse = 1, total = 2;
};

// Bits a coordinate that the 64 bytes of a key's code hold (docs/codecs.md#balanced).
inline CodeBits UsualBits(int head_dim) { return head_dim > 256 ? CodeBits{.5, 1} : CodeBits{}; }

}  // namespace seine

#endif  // SEINE_INDEX_CONFIG_CODE_BITS_H_
