// Settings are read once a process: what is set here holds for all its tests.
#include "engines/llama.cpp/tests/loaded_plugin.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "ggml-backend.h"

namespace seine::llama {

double Plugin::Number(const std::string& name) const {
  const std::string json = report();
  const size_t at = json.find("\"" + name + "\": ");
  return at == std::string::npos ? 0 : std::atof(json.c_str() + at + name.size() + 4);
}

const Plugin& ThePlugin() {
  static const Plugin* const plugin = [] {
    setenv("SEINE_MIN_KV", "256", 0);                                                  // loads have more
    for (const char* name : {"SEINE_TOP_K", "SEINE_REFINE"}) setenv(name, "4096", 0);  // one test has less
    setenv("SEINE_BETA", "1", 0);
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    ggml_backend_reg_t registry = ggml_backend_load(SEINE_PLUGIN);
    EXPECT_NE(registry, nullptr);
    llama_backend_init();
    return new Plugin{reinterpret_cast<void (*)(int)>(ggml_backend_reg_get_proc_address(registry, "seine_set_mode")),
                      reinterpret_cast<const char* (*)()>(ggml_backend_reg_get_proc_address(registry, "seine_report"))};
  }();
  return *plugin;
}

namespace {

std::string TemporaryFile() { return ::testing::TempDir() + "seine-plugin-test-" + std::to_string(getpid()) + ".gguf"; }

}  // namespace

Model MakeModel(const ModelShape& shape) {
  (void)ThePlugin();
  const std::string path = TemporaryFile();
  EXPECT_TRUE(WriteRandomModel(shape, 3, path));
  Model model = {llama_model_load_from_file(path.c_str(), llama_model_default_params()), &llama_model_free};
  std::filesystem::remove(path);
  return model;
}

llama_adapter_lora* MakeAdapter(llama_model* model, const ModelShape& shape, const std::vector<int>& layers,
                                uint32_t seed) {
  const std::string path = TemporaryFile();
  EXPECT_TRUE(WriteRandomAdapter(shape, layers, seed, path));
  llama_adapter_lora* adapter = llama_adapter_lora_init(model, path.c_str());
  EXPECT_NE(adapter, nullptr);
  std::filesystem::remove(path);
  return adapter;
}

}  // namespace seine::llama
