// Look-ups in the list of codecs.
#include "kernels/codecs/kinds/registry.h"

#include <algorithm>
#include <cassert>

namespace seine {

const std::vector<const CodecTraits*>& AllCodecs() {
  static const auto* const kCodecs = new std::vector<const CodecTraits*>{
#define SEINE_CODEC_TRAITS(Name, member) &k##Name##Traits,
      SEINE_FOR_EACH_CODEC(SEINE_CODEC_TRAITS)
#undef SEINE_CODEC_TRAITS
  };
  return *kCodecs;
}

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const CodecTraits* traits : AllCodecs()) names.emplace_back(traits->name);
  return names;
}

const CodecTraits* FindCodec(std::string_view name) {
  for (const CodecTraits* traits : AllCodecs()) {
    if (name == traits->name) return traits;
  }
  return nullptr;
}

const CodecTraits& TraitsOf(std::string_view name) {
  const CodecTraits* traits = FindCodec(name);
  assert(traits != nullptr);
  return *traits;
}

const CodecTraits& TraitsOf(CodecKind kind) { return *AllCodecs()[static_cast<size_t>(kind)]; }

CodecKind KindOf(const CodecTraits& traits) {
  const auto& all = AllCodecs();
  return static_cast<CodecKind>(std::find(all.begin(), all.end(), &traits) - all.begin());
}

const CodecTraits& DefaultCodec(bool with_profile) {
  const auto& all = AllCodecs();
  const auto fits = [&](const CodecTraits* traits) { return traits->needs_profile == with_profile; };
  return **std::find_if(all.begin(), all.end(), fits);
}

bool CodecTraits::Supports(Centre centre) const {
  return std::find(centres.begin(), centres.end(), centre) != centres.end();
}

bool CodecTraits::Takes(std::string_view option) const {
  return std::find(options.begin(), options.end(), option) != options.end();
}

bool CodecTraits::Supports(Coarse coarse) const {
  return std::find(coarse_modes.begin(), coarse_modes.end(), coarse) != coarse_modes.end();
}

}  // namespace seine
