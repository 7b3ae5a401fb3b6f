// What a codec is called, what it needs and what it can do: whoever asks about a codec asks its traits, and compares no
// names. codec_list.h has them all.
#ifndef SEINE_KERNELS_CODECS_CODEC_TRAITS_H_
#define SEINE_KERNELS_CODECS_CODEC_TRAITS_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/codec_list.h"

namespace seine {

// What a codec of one index is made of. Each takes what its traits say and ignores the rest.
struct CodecSpec : CodecOptions {
  int head_dim = 128;  // a multiple of 16 in [32, 512]
  uint64_t seed = 1;
  Centre centre = Centre::kWindow;
  int centre_window = 64;  // Centre::kWindow: a multiple of 64
};

// A fault of a codec's options.
struct CodecFault {
  const char* option = "";  // empty: nothing is
  std::string what;
};

struct CodecTraits {
  const char* name;  // on the wire and in flags
  // A codec a head, made of the moments of a model's profile; the settings profile, horizon and query_position are
  // such a codec's alone. Without: one codec serves every head.
  bool needs_profile;
  // Codec::CoarseNoise: searches may be asked for a share of the exact answer (SearchParams::recall_target).
  bool predicts_noise;
  std::initializer_list<Centre> centres;       // that it can store; the first is the usual one
  std::initializer_list<Coarse> coarse_modes;  // that its coarse plane can be scanned by; likewise
  int most_code_bytes;  // of a key's coarse row and record, less the record's factor; 0: as many as the layout has

  std::initializer_list<const char*> options;  // of SEINE_FOR_EACH_CODEC_OPTION, that it takes
  // Finds what is wrong with the options that it takes; nullptr where it takes none.
  CodecFault (*check)(const CodecSpec& spec);

  // The planes of a key, and so its bytes.
  CodeLayout (*layout)(const CodecSpec& spec);
  // `transform` is nullptr where no profile is needed.
  std::shared_ptr<const Codec> (*make)(const CodecSpec& spec, const CodecTransform* transform);
  // Whether `make` may be given this transform, which comes from outside; nullptr without a profile.
  bool (*accepts)(const CodecSpec& spec, const CodecTransform& transform);
  // Mean squared error of a coordinate of variance 1 and `total` bits by its leading `kept`; nullptr without a profile.
  double (*distortion)(int total, int kept);
  // What preparing queries reads of a device's tables.
  double (*query_table_bytes)(int head_dim);

  bool Supports(Centre centre) const;
  bool Supports(Coarse coarse) const;
  bool Takes(std::string_view option) const;
};

// nullptr: there is none of this name.
const CodecTraits* FindCodec(std::string_view name);
// The traits of a codec whose name has been checked.
const CodecTraits& TraitsOf(std::string_view name);
// What an index has that names no codec: the first of those that need a profile, or that need none.
const CodecTraits& DefaultCodec(bool with_profile);
const std::vector<const CodecTraits*>& AllCodecs();
std::vector<std::string> CodecNames();

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODEC_TRAITS_H_
