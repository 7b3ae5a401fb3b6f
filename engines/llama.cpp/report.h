// Counts of what was answered, and why not, for the whole process.
#ifndef SEINE_ENGINES_LLAMA_CPP_REPORT_H_
#define SEINE_ENGINES_LLAMA_CPP_REPORT_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "index/prompt/prompt_attention.h"

namespace seine::llama {

// Thread-safe. Written at exit where SEINE_REPORT says so.
class Report {
 public:
  static Report& Get();

  void Answered(int64_t ns);
  // The same for a prompt's node, and what it attended.
  void AnsweredPrompt(int64_t ns);
  void Prompt(const PromptCounts& counts);
  // A prompt's answer beside llama.cpp's own: both times, and how far apart, as a share of the norm.
  void ComparedPrompt(int64_t ns, int64_t plain_ns, double difference);
  // An attention node that llama.cpp's own kernel computed, where its size would have had it answered.
  void Declined(const std::string& reason);
  void Encoded(int64_t keys, int64_t ns);
  // An answer's distance from exact attention, as a share of its norm, and that of llama.cpp's own kernel; and windows
  // whose codes were not of its cells.
  void Checked(double error, double plain_error, int64_t stale_windows);
  // The gate's check of a layer: the share of attention that its codes lose. And answers of a layer that attends
  // exactly since it loses too much.
  void Gated(double lost);
  void SteppedBack(int layer, double lost);
  void AnsweredExactly();
  void Changed(int64_t windows);  // outside of graphs: heard, or found out by hashes
  // Messages to a server, their bytes of keys, values and queries, and the time that its answers were waited for.
  void Remote(int64_t steps, int64_t grpc_steps, int64_t bytes, int64_t waiting_ns);
  void GaveBack(int64_t cells);  // whose memory the system has again
  void Bytes(int64_t codes, int64_t cache);
  void HugePages(int64_t bytes);  // of caches, that were put into such pages
  // The code that contexts from now on are answered by, and its profile's file; none: empty.
  void Uses(const std::string& codec, const std::string& profile);

  std::string Json();
  // Written or printed now; at exit too.
  void Write();

 private:
  Report() = default;

  std::mutex mutex_;
  int64_t answered_ = 0, answered_ns_ = 0, encoded_keys_ = 0, encode_ns_ = 0;
  int64_t checked_ = 0, stale_windows_ = 0, changed_windows_ = 0, code_bytes_ = 0, cache_bytes_ = 0;
  int64_t huge_page_bytes_ = 0, given_back_cells_ = 0;
  int64_t remote_steps_ = 0, remote_grpc_steps_ = 0, remote_bytes_ = 0, remote_waiting_ns_ = 0;
  int64_t prompt_answered_ = 0, prompt_ns_ = 0, prompt_compared_ = 0, prompt_compared_ns_ = 0, prompt_plain_ns_ = 0;
  int64_t gate_checks_ = 0, gate_answers_ = 0;
  double sum_lost_ = 0, worst_lost_ = 0;
  std::map<int, double> gate_layers_;  // that stepped back, and what they lost
  double worst_prompt_difference_ = 0;
  PromptCounts prompt_;
  double worst_error_ = 0, sum_error_ = 0, worst_plain_error_ = 0, sum_plain_error_ = 0;
  std::map<std::string, int64_t> declined_;
  std::string codec_, profile_;
};

// A line on stderr, "seine: " in front, once a process however often it is said. Thread-safe.
void SayOnce(const std::string& line);
// The same, where what was said before is told by `key` instead of the line.
void SayOnce(const std::string& key, const std::string& line);
// That attention over so many cells is answered, how, and by which profile (empty: none). Once for each of the latter
// two: a server's log shows that the plug-in works.
void SayAnswered(int64_t cells, const std::string& how, const std::string& profile);
// That llama.cpp attends by itself, and why.
void SayLeft(const std::string& reason);

}  // namespace seine::llama

#endif  // SEINE_ENGINES_LLAMA_CPP_REPORT_H_
