#ifndef SEINE_ENGINES_LLAMA_CPP_TESTS_FAKE_GGML_H_
#define SEINE_ENGINES_LLAMA_CPP_TESTS_FAKE_GGML_H_

// What differs from the ggml that the plug-in knows.
enum class Drift { kNone, kNoBackend, kTensorSize, kTypes, kAttention, kProperties };

extern "C" {
// Loads a plug-in into a ggml that states this version of the backend interface. False: it was refused.
bool fake_ggml_load(const char* plugin, int with_version, Drift with_drift);
}

#endif  // SEINE_ENGINES_LLAMA_CPP_TESTS_FAKE_GGML_H_
