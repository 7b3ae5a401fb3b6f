// The plug-in in ggmls of several versions and builds: which it serves, and why not.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <string>

#include "engines/llama.cpp/tests/fixtures/fake_ggml.h"
#include "ggml-backend.h"

namespace seine::llama {

namespace {

// What the plug-in says of itself, as seine_kv.llama reads it.
std::string About() {
  void* const library = dlopen(SEINE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<const char* (*)()>(dlsym(library, "seine_plugin"))();
}

void ExpectRefused(int version, Drift drift, const std::string& reason) {
  EXPECT_FALSE(fake_ggml_load(SEINE_PLUGIN, version, drift));
  EXPECT_NE(About().find(reason), std::string::npos) << About();
}

TEST(Ggml, VersionsThatAreNotKnownAreRefusedByName) {
  for (const int version : {1, 4, 6}) {
    ExpectRefused(
        version, Drift::kNone,
        "it has version " + std::to_string(version) + " of ggml's backend interface, and the plug-in serves 2 and 3");
  }
}

TEST(Ggml, DriftWithinAVersionIsRefused) {
  for (const int version : {2, 3}) {
    ExpectRefused(version, Drift::kTensorSize, "it is not the ggml that the plug-in knows: a tensor's size");
    ExpectRefused(version, Drift::kTypes, "the numbers of types");
    ExpectRefused(version, Drift::kAttention, "GGML_OP_FLASH_ATTN_EXT");
    ExpectRefused(version, Drift::kProperties, "how a device is laid out");
    ExpectRefused(version, Drift::kNoBackend, "load that of the CPU first");
  }
}

// Asked as `python -m seine_kv.llama --check` asks.
TEST(Ggml, ShapesAreAskedForWithoutOne) {
  void* const library = dlopen(SEINE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  const auto unfit = reinterpret_cast<const char* (*)(int, int, int, int)>(dlsym(library, "seine_unfit"));
  EXPECT_EQ(unfit(128, 128, 32, 8), nullptr);
  EXPECT_STREQ(unfit(576, 512, 128, 1), "values of another head_dim than keys");
  EXPECT_STREQ(unfit(128, 128, 64, 1), "a group of more than 32 query heads");
  EXPECT_STREQ(unfit(100, 100, 8, 8), "a head_dim that is none of 64, 80, 96, 128, 192, 256, 512");
  EXPECT_STREQ(unfit(64, 64, 8, 0), "no heads");
}

// The last: what is served stays bound.
TEST(Ggml, OneOfTwoIsServed) {
  EXPECT_TRUE(fake_ggml_load(SEINE_PLUGIN, 3, Drift::kNone)) << About();
  EXPECT_NE(About().find("\"interface\":3"), std::string::npos) << About();
  EXPECT_TRUE(fake_ggml_load(SEINE_PLUGIN, 3, Drift::kNone)) << "a second time";
  EXPECT_EQ(ggml_backend_load(SEINE_PLUGIN), nullptr);
  EXPECT_NE(About().find("the plug-in serves another ggml of this process"), std::string::npos) << About();
}

}  // namespace

}  // namespace seine::llama
