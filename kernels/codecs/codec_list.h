// The codecs and their options, each declared once. kinds/NAME.h and the folder NAME/ have a codec's code, which the
// build finds there; CodecSettings of proto/seine/v1/index_service.proto has a field of each option's name.
#ifndef SEINE_KERNELS_CODECS_CODEC_LIST_H_
#define SEINE_KERNELS_CODECS_CODEC_LIST_H_

namespace seine {

// X(Name, name): CodecKind::kName, kNameTraits, NameViews as CodecTables::name, and the device code's NameSearch.
#define SEINE_FOR_EACH_CODEC(X) \
  X(Rsq, rsq)                   \
  X(Balanced, balanced)

// X(Type, name, usual, help): a number that some codecs take (CodecTraits::options) and others refuse.
#define SEINE_FOR_EACH_CODEC_OPTION(X)                                                      \
  X(double, coarse_bits, 1, "balanced: bits a coordinate of the scanned plane, .5, 1 or 2") \
  X(double, total_bits, 2, "balanced: bits a coordinate in all, a multiple of 1/8 from 1 to 4")

// Options of all codecs, for what a codec is made of (CodecSpec) and for settings.
struct CodecOptions {
#define SEINE_CODEC_OPTION_FIELD(Type, name, usual, help) Type name = usual;
  SEINE_FOR_EACH_CODEC_OPTION(SEINE_CODEC_OPTION_FIELD)
#undef SEINE_CODEC_OPTION_FIELD
};

template <typename T>
struct CodecOption {
  const char* name;
  T CodecOptions::*field;
  const char* help;  // of command lines
};

// visit(option) for each CodecOption.
template <typename Visit>
void ForEachCodecOption(const Visit& visit) {
#define SEINE_CODEC_OPTION_VISIT(Type, name, usual, help) visit(CodecOption<Type>{#name, &CodecOptions::name, help});
  SEINE_FOR_EACH_CODEC_OPTION(SEINE_CODEC_OPTION_VISIT)
#undef SEINE_CODEC_OPTION_VISIT
}

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_CODEC_LIST_H_
