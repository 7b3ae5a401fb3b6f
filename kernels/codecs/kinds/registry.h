// The codecs by their kinds, from the list of codec_list.h. The build includes each codec's header, kinds/NAME.h.
// codec_bodies.h has their device code. Internal to kernels/; other rooms ask codec_traits.h.
#ifndef SEINE_KERNELS_CODECS_KINDS_REGISTRY_H_
#define SEINE_KERNELS_CODECS_KINDS_REGISTRY_H_

#include <cstdint>

#include "kernels/codecs/code.h"
#include "kernels/codecs/codec_list.h"
#include "kernels/codecs/codec_traits.h"
#include "kernels/codecs/kinds/found.h"  // made by kernels/CMakeLists.txt

namespace seine {

enum class CodecKind : uint8_t {
#define SEINE_CODEC_KIND(Name, member) k##Name,
  SEINE_FOR_EACH_CODEC(SEINE_CODEC_KIND)
#undef SEINE_CODEC_KIND
};

// What a codec computes with, as plain views: the same struct describes tables in the codec's own memory
// (Codec::Tables) and a copy of them on a device. Only the member of its kind is filled.
// Thread safety: read only. Pointers live as long as the codec, or as the device's copy.
struct CodecTables {
  CodecKind kind = CodecKind::kRsq;
  CodeLayout layout;
  Centre centre = Centre::kNone;
#define SEINE_CODEC_VIEWS(Name, member) Name##Views member;
  SEINE_FOR_EACH_CODEC(SEINE_CODEC_VIEWS)
#undef SEINE_CODEC_VIEWS
};

// visit(table) for every table that a codec may have, by reference: to copy them and set where they lie.
template <typename Visit>
void ForEachTable(CodecTables* tables, Visit visit) {
#define SEINE_CODEC_VISIT(Name, member) tables->member.ForEachTable(visit);
  SEINE_FOR_EACH_CODEC(SEINE_CODEC_VISIT)
#undef SEINE_CODEC_VISIT
}

CodecKind KindOf(const CodecTraits& traits);
const CodecTraits& TraitsOf(CodecKind kind);

}  // namespace seine

#endif  // SEINE_KERNELS_CODECS_KINDS_REGISTRY_H_
