// The list of codecs: names, traits, and what each trait promises of the codec that it makes.
#include "kernels/codecs/kinds/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/kernels/test_util.h"

namespace seine {
namespace {

// The same coordinates for keys and queries, a bit each for the scan and one more for the whole code.
CodecTransform PlainTransform(int dim) {
  CodecTransform t;
  t.key_map.assign(static_cast<size_t>(dim) * dim, 0);
  for (int i = 0; i < dim; ++i) t.key_map[static_cast<size_t>(i) * dim + i] = 1;
  t.query_map = t.key_map;
  t.lambda.assign(dim, 1);
  t.coarse_bits.assign(dim, 1);
  t.total_bits.assign(dim, 2);
  return t;
}

std::shared_ptr<const Codec> Made(const CodecTraits& traits, const CodecSpec& spec) {
  const CodecTransform transform = PlainTransform(spec.head_dim);
  return traits.make(spec, traits.needs_profile ? &transform : nullptr);
}

TEST(CodecRegistry, NamesFindTheirTraits) {
  std::set<std::string> names;
  for (const CodecTraits* traits : AllCodecs()) {
    EXPECT_EQ(FindCodec(traits->name), traits);
    EXPECT_EQ(&TraitsOf(traits->name), traits);
    EXPECT_EQ(&TraitsOf(KindOf(*traits)), traits);
    EXPECT_TRUE(names.insert(traits->name).second) << traits->name;
  }
  const std::vector<std::string> listed = CodecNames();
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), names);
  EXPECT_EQ(FindCodec("pq"), nullptr);
  EXPECT_EQ(FindCodec(""), nullptr);
  EXPECT_STREQ(DefaultCodec(false).name, "rsq");
  EXPECT_STREQ(DefaultCodec(true).name, "balanced");
}

TEST(CodecRegistry, TraitsSayWhatTheCodecIs) {
  for (const CodecTraits* traits : AllCodecs()) {
    for (const Centre centre : traits->centres) {
      CodecSpec spec;
      spec.head_dim = 64;
      spec.centre = centre;
      spec.centre_window = 128;
      const auto codec = Made(*traits, spec);
      const CodeLayout want = traits->layout(spec), got = codec->layout();
      EXPECT_TRUE(traits->Supports(centre));
      EXPECT_EQ(codec->centre(), centre) << traits->name;
      EXPECT_EQ(codec->Tables().kind, KindOf(*traits)) << traits->name;
      EXPECT_EQ(got.head_dim, want.head_dim) << traits->name;
      EXPECT_EQ(got.coarse_bytes, want.coarse_bytes) << traits->name;
      EXPECT_EQ(got.fine_bytes, want.fine_bytes) << traits->name;
      EXPECT_EQ(got.centre_window, want.centre_window) << traits->name;
      if (traits->most_code_bytes > 0) {
        EXPECT_LE(got.coarse_bytes + got.fine_bytes - 1, traits->most_code_bytes) << traits->name;
      }
    }
    EXPECT_TRUE(traits->Supports(Coarse::kSignIp)) << traits->name;
    EXPECT_EQ(traits->needs_profile, traits->distortion != nullptr) << traits->name;
  }
  EXPECT_FALSE(TraitsOf("balanced").Supports(Coarse::kCollision));
  EXPECT_FALSE(TraitsOf("balanced").Supports(Centre::kNone));
  EXPECT_TRUE(TraitsOf("rsq").Supports(Coarse::kCollision));
}

TEST(CodecRegistry, RecallTargetsAreForCodecsThatPredictTheirNoise) {
  for (const CodecTraits* traits : AllCodecs()) {
    CodecSpec spec;
    spec.head_dim = 64;
    PreparedQuery query;
    const auto codec = Made(*traits, spec);
    codec->PrepareQuery(Gaussian(64, 5).data(), &query);
    EXPECT_EQ(codec->CoarseNoise(query) > 0, traits->predicts_noise) << traits->name;
  }
}

}  // namespace
}  // namespace seine
