// Reads the environment, each variable with its range.
#include "engines/llama.cpp/settings.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace seine::llama {

namespace {

std::atomic<Mode> current_mode{Mode::kSeine};
std::atomic<int> current_top_k{0};  // 0: the settings'
std::atomic<double> current_prompt_mass{0};

template <typename T, typename Parse>
void Read(const char* name, T least, T most, Parse parse, T* out) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  T value;
  if (parse(text, &value) && value >= least && value <= most) {
    *out = value;
  } else {
    std::fprintf(stderr, "seine: %s=%s is no number in its range; the default is taken\n", name, text);
  }
}

void Read(const char* name, int least, int most, int* out) {
  Read(
      name, least, most, [](const char* text, int* value) { return absl::SimpleAtoi(text, value); }, out);
}

void Read(const char* name, bool* out) {
  int value = *out ? 1 : 0;
  Read(name, 0, 1, &value);
  *out = value != 0;
}

void Read(const char* name, std::string* out) {
  if (const char* text = std::getenv(name)) *out = text;
}

// What has no meaning where a server answers, and is set nonetheless.
void PassOver(Settings* s) {
  const auto say = [](bool set, const char* name, const char* why) {
    if (set) std::fprintf(stderr, "seine: %s is passed over, since SEINE_ENDPOINT is set: %s\n", name, why);
  };
  say(!s->calibrate.empty(), "SEINE_CALIBRATE", "no profile is measured");
  say(!s->profiles.empty(), "SEINE_PROFILES", "SEINE_PROFILE names one of the server's profiles");
  say(s->check != 0, "SEINE_CHECK", "no answer is compared with exact attention");
  s->calibrate.clear(), s->profiles.clear();
  s->check = 0;
}

}  // namespace

Settings Settings::FromEnvironment() {
  Settings s;
  int min_kv = static_cast<int>(s.min_kv), check = 0;
  int cells = 0;
  int calibrate_tokens = static_cast<int>(s.calibrate_tokens);
  Read("SEINE_MIN_KV", 256, 1 << 30, &min_kv);
  Read("SEINE_TOP_K", 1, 1 << 16, &s.top_k);
  Read(
      "SEINE_BETA", 0.0, 1.0, [](const char* text, double* value) { return absl::SimpleAtod(text, value); }, &s.beta);
  Read("SEINE_REFINE", 0, 1 << 16, &s.refine);
  Read("SEINE_SINK", 0, 1 << 20, &s.sink);
  Read("SEINE_LOCAL", 0, 1 << 20, &s.local);
  Read("SEINE_TAIL", &s.tail);
  Read("SEINE_PROFILE", &s.profile);
  Read("SEINE_PROFILES", &s.profiles);
  Read("SEINE_CALIBRATE", &s.calibrate);
  Read("SEINE_CALIBRATE_TOKENS", 512, 1 << 30, &calibrate_tokens);
  Read("SEINE_PROMPT", &s.prompt);
  if (s.prompt != "exact" && s.prompt != "sparse" && s.prompt != "off") {
    std::fprintf(stderr, "seine: SEINE_PROMPT=%s is none of exact, sparse, off; sparse is taken\n", s.prompt.c_str());
    s.prompt = "sparse";
  }
  Read("SEINE_PROMPT_MIN", 0, 1 << 30, &s.prompt_min);
  Read(
      "SEINE_PROMPT_MASS", 0.0, 1.0, [](const char* text, double* value) { return absl::SimpleAtod(text, value); },
      &s.prompt_mass);
  Read(
      "SEINE_GATE", 0.0, 1.0, [](const char* text, double* value) { return absl::SimpleAtod(text, value); }, &s.gate);
  Read("SEINE_HUGE_PAGES", &s.huge_pages);
  Read("SEINE_CHECK", 0, 1 << 30, &check);
  Read("SEINE_LOG", &s.log);
  Read("SEINE_ENDPOINT", &s.endpoint);
  Read("SEINE_INDEX", &s.index);
  Read("SEINE_CELLS", 0, 1 << 30, &cells);
  Read("SEINE_REPORT", &s.report);
  s.min_kv = min_kv;
  s.check = check;
  s.cells = cells;
  s.calibrate_tokens = calibrate_tokens;
  if (!s.endpoint.empty()) PassOver(&s);
  const auto needs_server = [&](bool set, const char* name) {
    if (set && s.endpoint.empty()) std::fprintf(stderr, "seine: %s is passed over: it needs SEINE_ENDPOINT\n", name);
  };
  needs_server(!s.index.empty(), "SEINE_INDEX");
  needs_server(s.cells > 0, "SEINE_CELLS");
  return s;
}

const Settings& settings() {
  static const Settings* const of_process = new Settings(Settings::FromEnvironment());
  return *of_process;
}

Mode mode() { return current_mode.load(std::memory_order_relaxed); }
void SetMode(Mode mode) { current_mode.store(mode, std::memory_order_relaxed); }

int top_k() {
  const int set = current_top_k.load(std::memory_order_relaxed);
  return set > 0 ? set : settings().top_k;
}
void SetTopK(int top_k) { current_top_k.store(top_k, std::memory_order_relaxed); }

double prompt_mass() {
  const double set = current_prompt_mass.load(std::memory_order_relaxed);
  return set > 0 ? set : settings().prompt == "sparse" ? settings().prompt_mass : 1;
}
void SetPromptMass(double mass) { current_prompt_mass.store(mass, std::memory_order_relaxed); }

}  // namespace seine::llama
