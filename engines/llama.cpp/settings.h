// What the environment says: llama.cpp's programs have no flags for a backend.
#ifndef SEINE_ENGINES_LLAMA_CPP_SETTINGS_H_
#define SEINE_ENGINES_LLAMA_CPP_SETTINGS_H_

#include <cstdint>
#include <string>

#include "index/config/code_bits.h"
#include "index/layer_gate.h"

namespace seine::llama {

struct Settings {
  int64_t min_kv = 2048;  // SEINE_MIN_KV: below so many cells llama.cpp's own kernel decodes
  int top_k = 100;        // SEINE_TOP_K
  double beta = 0;        // SEINE_BETA; 0: the codec's usual share
  int refine = 100;       // SEINE_REFINE
  int sink = 64;          // SEINE_SINK: first cells, always attended
  int local = 256;        // SEINE_LOCAL: last cells, always attended
  bool tail = true;       // SEINE_TAIL=0: tokens that are not chosen do not count at all
  std::string profile;    // SEINE_PROFILE: file; empty: one of `profiles`, or the rsq code, which needs none
  std::string profiles;   // SEINE_PROFILES: folder, of which the one profile that fits the model is taken
  std::string calibrate;  // SEINE_CALIBRATE: file of a profile that is measured; llama.cpp attends by itself meanwhile
  int64_t calibrate_tokens = 8192;  // SEINE_CALIBRATE_TOKENS: that are measured before it is written
  // SEINE_PROMPT=exact, sparse or off: how a prompt's micro-batches are attended; off: by llama.cpp itself.
  std::string prompt = "sparse";
  int prompt_min = 2048;     // SEINE_PROMPT_MIN: cells from which on sparse ones are
  double prompt_mass = .96;  // SEINE_PROMPT_MASS: of a block's attention that sparse ones keep
  bool huge_pages = true;    // SEINE_HUGE_PAGES=0: the cache's pages stay as llama.cpp got them
  double gate = kGateBound;  // SEINE_GATE: share of attention that a layer may lose before it attends exactly; 0: any
  int64_t check = 0;         // SEINE_CHECK=n: every n-th answer is compared with exact attention
  bool log = false;          // SEINE_LOG=1: says on stderr what it does
  std::string endpoint;      // SEINE_ENDPOINT: of a seined that holds keys, values and codes; empty: they are here
  std::string index;         // SEINE_INDEX: its name there, under which it stays and is found again; empty: it goes
  int64_t cells = 0;         // SEINE_CELLS: whose memory llama.cpp keeps, of all chats, where a server has them; 0: all
  std::string report;        // SEINE_REPORT: file that counts are written to at exit, as JSON; "-": stderr

  // A value that cannot be read is said on stderr, counted nowhere, and its default is taken.
  static Settings FromEnvironment();
};

// The process's, read once.
const Settings& settings();

// Bits a coordinate of the balanced code, where there is a profile. Two are scanned of small heads, where one misses
// keys that hold most of a head's mass (docs/decisions/codecs/0038-two-bits-for-small-heads.md).
inline CodeBits CodeBitsOf(int head_dim) { return head_dim <= 64 ? CodeBits{2, 2.125} : UsualBits(head_dim); }

// For programs that compare: what the plug-in does from the next graph on.
enum class Mode : int {
  kSeine = 0,
  kPlain = 1,
  kExact = 2,   // our exact attention in place of llama.cpp's
  kDecode = 3,  // prompts are llama.cpp's
  kCompare = 4  // a prompt's nodes are computed by llama.cpp as well, and both are timed
};
Mode mode();
void SetMode(Mode mode);
// Share of a block's attention that prompts of settings().prompt_min cells keep; 1: all. settings()' until another is
// set, from the next graph on.
double prompt_mass();
void SetPromptMass(double mass);
// settings().top_k until another is set, from the next graph on.
int top_k();
void SetTopK(int top_k);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_SETTINGS_H_
